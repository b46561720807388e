# SPDX-License-Identifier: Apache-2.0
"""The grammar of a whole assistant turn: thinking, then an answer or tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar.arguments import arguments, free_arguments
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.patterns import escape
from vllm.parser.turn_grammar.thinking import Thinking, thinking
from vllm.parser.turn_grammar.tries import other_names
from vllm.parser.turn_grammar.wire_format import CallSyntax, TurnFormat


@dataclass(frozen=True)
class Tool:
    """A function tool of the request. `parameters` is its JSON schema, None for no arguments."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True)
class TurnRules:
    """What a turn may hold.

    Attributes:
        thinking: whether a thinking block leads, and whether it may be empty; `continued`
            is the rest of a block the prompt opened.
        budget: bound of the thinking text in model tokens.
        tools: tools that may be called.
        other_tools: admit calls to unlisted names, with any arguments.
        answer: admit an answer.
        body: format of the answer's text; None for any text.
        parallel: admit more than one call.
        open_answer: the prompt already opened the answer; only its rest follows.
        written: what the prompt wrote behind the start anchor of the message, the first characters of an opener or
            nothing; None where the turn is not at the start of a message.
    """

    thinking: Thinking = "required"
    budget: int | None = None
    tools: Sequence[Tool] = ()
    other_tools: bool = False
    answer: bool = True
    body: f.Format | None = None
    parallel: bool = True
    open_answer: bool = False
    written: str | None = None
    free: frozenset[str] = field(default_factory=frozenset)


def turn_tag(turn: TurnFormat, rules: TurnRules) -> dict[str, Any]:
    """Structural tag of a turn.

    Raises:
        NotGrammar: the format or the rules cannot be expressed.
    """
    if rules.open_answer:
        return f.structural_tag(_answer_rest(turn, rules.body))
    first = turn if rules.written is None else turn.first_message(rules.written)
    if first != turn:
        return f.structural_tag(_from_first(turn, first, rules))
    lead = _thinking(turn, rules)
    if rules.thinking.startswith("optional"):
        lead = f.opt(lead)
    return f.structural_tag(f.seq(lead, *map(f.opt, _preambles(turn, rules)), _end(turn, turn, rules)))


def _from_first(turn: TurnFormat, first: TurnFormat, rules: TurnRules) -> f.Format:
    """A turn whose first message is spelled as in `first`, whichever message it is."""
    begun = _preambles(first, rules)
    later = list(map(f.opt, _preambles(turn, rules)))
    choices = []
    if (lead := _thinking(first, rules)) != f.NOTHING:
        choices.append(f.seq(lead, *later, _end(turn, turn, rules)))
    if not choices or rules.thinking != "required":
        choices += [f.seq(message, *later, _end(turn, turn, rules)) for message in begun]
        if first.call is not None or first.answer is not None:
            choices.append(_end(first, turn, rules))
    return f.alt(*choices)


def _thinking(turn: TurnFormat, rules: TurnRules) -> f.Format:
    if turn.thinking is None or rules.thinking == "none":
        return f.NOTHING
    return thinking(turn, rules.thinking, budget=rules.budget)


def _preambles(turn: TurnFormat, rules: TurnRules) -> list[f.Format]:
    """A visible message may lead to calls; before an answer with a fixed body it may not."""
    if rules.body is not None or not rules.answer:
        return []
    return [
        f.seq(f.any_of(openers), f.text(_reserved(turn, closers)), f.any_of(closers))
        for openers, closers in turn.preambles
    ]


def _end(first: TurnFormat, turn: TurnFormat, rules: TurnRules) -> f.Format:
    """Calls or the answer, the first of them spelled as in `first`."""
    choices: list[f.Format] = []
    if (rules.tools or rules.other_tools) and (first.call is not None or first is turn):
        choices.append(_calls(first, turn, rules))
    if rules.answer and (first.answer is not None or first is turn):
        choices.append(_answer(first, rules.body))
    if not choices:
        raise NotGrammar("the turn may hold neither an answer nor a call")
    return f.alt(*choices)


def _reserved(turn: TurnFormat, closers: Sequence[str]) -> tuple[str, ...]:
    return (*closers, *turn.reserved)


def _answer(turn: TurnFormat, body: f.Format | None) -> f.Format:
    if turn.answer is None:
        raise NotGrammar("the format has no answer region")
    return f.seq(f.any_of(turn.answer[0]), _answer_rest(turn, body))


def _answer_rest(turn: TurnFormat, body: f.Format | None) -> f.Format:
    assert turn.answer is not None
    closers = turn.answer[1]
    if body is None:
        body = f.text(_reserved(turn, closers))
    return f.seq(body, f.opt(f.any_of(closers)))


def answer_delimiters(turn: TurnFormat) -> tuple[str, ...]:
    """Substrings that would end an answer early."""
    return () if turn.answer is None else _reserved(turn, turn.answer[1])


def _calls(first: TurnFormat, turn: TurnFormat, rules: TurnRules) -> f.Format:
    if first.call is None or turn.call is None:
        raise NotGrammar("the format has no tool calls")
    more = f.NOTHING
    if rules.parallel and turn.call.separators:
        more = f.star(f.seq(f.any_of(turn.call.separators), _one_call(turn, turn.call, rules)))
    return f.seq(_one_call(turn, first.call, rules), more, f.opt(f.any_of(turn.call.closers)))


def _one_call(turn: TurnFormat, syntax: CallSyntax, rules: TurnRules) -> f.Format:
    one = [_call(syntax, tool, _arguments(turn, syntax, tool, rules)) for tool in rules.tools]
    if rules.other_tools:
        header = _other_header(syntax, [tool.name for tool in rules.tools])
        if header is not None:
            one.append(f.seq(header, free_arguments(syntax, turn.reserved)))
    return f.alt(*one)


def _arguments(turn: TurnFormat, syntax: CallSyntax, tool: Tool, rules: TurnRules) -> f.Format:
    if tool.name in rules.free:
        return free_arguments(syntax, turn.reserved)
    try:
        return arguments(tool.parameters, syntax, turn.reserved, tool.strict)
    except NotGrammar:
        return free_arguments(syntax, turn.reserved)


def _call(syntax: CallSyntax, tool: Tool, content: f.Format) -> f.Format:
    names = [tool.name]
    if syntax.doubled and "." not in tool.name:
        doubled = f"{tool.name}.{tool.name}"
        names = [doubled] if tool.name in syntax.taken else [doubled, tool.name]
    spelled = "|".join(map(escape, names))
    header = f.regex(syntax.before + (f"(?:{spelled})" if len(names) > 1 else spelled) + syntax.after)
    if not syntax.body_begin:
        return f.seq(header, content)
    begins = f.any_of(syntax.body_begin.format(name=name) for name in names)
    return f.seq(header, begins, content, f.const(syntax.body_end))


def _other_header(syntax: CallSyntax, names: Sequence[str]) -> f.Format | None:
    """Header of a call to an unlisted tool, None where names cannot be told apart."""
    if syntax.name_class is None or syntax.body_begin:
        return None
    return f.regex(syntax.before + other_names(syntax.name_class, names) + syntax.after)
