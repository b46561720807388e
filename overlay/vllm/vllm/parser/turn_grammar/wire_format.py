# SPDX-License-Identifier: Apache-2.0
"""What a turn grammar has to know about a model's wire format, whatever the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import regex
from vllm.logger import init_logger
from vllm.parser.chat_format.delimiters import SEARCH_SECONDS
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.patterns import escape

logger = init_logger(__name__)


def _is_whole(pattern: str, name: str) -> bool:
    """Whether all of `name`, which the client chose, is one match of the template's `pattern`."""
    try:
        return regex.fullmatch(pattern, name, regex.DOTALL, timeout=SEARCH_SECONDS) is not None
    except TimeoutError:
        return False


@dataclass(frozen=True)
class ParameterSyntax:
    """How one argument is written: `between? begin KEY middle VALUE end`.

    Attributes:
        between: regex of what may stand before a parameter.
        begin: literal up to the key.
        key: regex of a spellable key.
        middle: literal between key and value.
        ends: literals that close a value.
        open_ends: (literal, next) pairs: the literal closes a value only where `next`
            follows directly. `next` is `begin` for a format whose closer may be left out.
        strips: the parser strips white space around a value.
        stops: further literals at which the parser ends a value.
        breaks: literals that end the call wherever they stand, also in a key.
    """

    begin: str
    middle: str
    ends: tuple[str, ...]
    key: str
    between: str = r"\n?"
    open_ends: tuple[tuple[str, str], ...] = ()
    strips: bool = False
    stops: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    def spells(self, name: str) -> bool:
        return _is_whole(self.key, name) and not any(literal in name for literal in self.breaks)


@dataclass(frozen=True)
class CallSyntax:
    """How one tool call is written: `header(NAME) body_begin ARGUMENTS body_end`.

    Attributes:
        before, after: xgrammar regexes around the name in the header.
        begins: every spelling of the text before the name; empty when they are not a few literals.
        name: regex of a spellable name.
        name_class: members of the negated class a name consists of; None when names are
            not one negated class, and then unlisted names cannot be admitted.
        body_begin, body_end: literals around the arguments; `{name}` is the tool's name.
        closers: literals that end a call.
        separators: the closers after which another call may follow.
        doubled: a name without a dot may also be written `name.name`.
        taken: names that mean something else in a header; a tool of that name is only written doubled.
    """

    before: str
    after: str
    name: str
    closers: tuple[str, ...]
    separators: tuple[str, ...]
    parameter: ParameterSyntax
    name_class: str | None = None
    body_begin: str = ""
    body_end: str = ""
    doubled: bool = False
    taken: frozenset[str] = frozenset()
    begins: tuple[str, ...] = ()

    def spells(self, name: str) -> bool:
        return _is_whole(self.name, name)


@dataclass(frozen=True)
class TurnFormat:
    """Delimiters of an assistant turn, as it continues the prompt's start anchor.

    Attributes:
        label: the parser's name, for messages and environment switches.
        anchors: regex of the text that begins an assistant message.
        thinking: (openers, closers), or None when the format has no thinking.
        answer: (openers, closers).
        call: None when the format has no tool calls.
        reserved: literals free text may never hold beside its own closers.
        preambles: (openers, closers) of visible messages that may precede a call or answer.
        always_thinks: a fresh turn must begin with thinking.
        anchor_texts: the anchors as literals, where they are a few.
    """

    label: str
    anchors: str
    thinking: tuple[tuple[str, ...], tuple[str, ...]] | None
    answer: tuple[tuple[str, ...], tuple[str, ...]] | None
    call: CallSyntax | None
    reserved: tuple[str, ...] = ()
    preambles: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    always_thinks: bool = True
    anchor_texts: tuple[str, ...] = ()

    def answers(self) -> list[tuple[str, tuple[str, ...]]]:
        """The literals that open a visible message, each with all that ends one."""
        regions = [region for region in (self.answer, *self.preambles) if region is not None]
        closers = tuple(dict.fromkeys([closer for _, ends in regions for closer in ends] + list(self.reserved)))
        openers = dict.fromkeys(opener.strip() for begins, _ in regions for opener in begins)
        return [(opener, closers) for opener in openers]

    def first_message(self, written: str) -> TurnFormat:
        """The format of a turn's first message behind a start anchor and `written`, the first characters of an opener
        (possibly none): openers without what the prompt wrote of them. An opener that repeats the anchor may also be
        continued from behind it, where the parser still finds it.

        Raises:
            NotGrammar: no opener begins that way.
        """

        def rests(forms: tuple[str, ...]) -> tuple[str, ...]:
            behind = [form.removeprefix(anchor) for form in forms for anchor in self.anchor_texts]
            found = [rest for rest in behind if any(rest[start:] in forms for start in range(len(rest)))]
            begun = [form for form in (*forms, *found) if form.startswith(written)]
            return tuple(dict.fromkeys(form[len(written) :] for form in begun))

        def region(pair: tuple[tuple[str, ...], tuple[str, ...]] | None):
            openers = tuple(filter(None, rests(pair[0]))) if pair is not None else ()
            return (openers, pair[1]) if pair is not None and openers else None

        call = self.call
        if call is not None and (begins := rests(call.begins)) != call.begins:
            spelled = f"(?:{'|'.join(map(escape, begins))})" if any(begins) else ""
            call = replace(call, before=spelled, begins=begins) if begins else None
        elif written:
            call = None
        begun = [region(pair) for pair in self.preambles]
        first = replace(
            self,
            thinking=region(self.thinking),
            answer=region(self.answer),
            call=call,
            preambles=tuple(pair for pair in begun if pair is not None),
        )
        if first.thinking is None and first.answer is None and first.call is None:
            raise NotGrammar(f"no opener begins with {written!r}")
        return first


def turn_format_named(parser: str | None, tokenizer: Any) -> TurnFormat | None:
    """Turn format of a registered parser name, None for parsers without one.

    A response template that has no grammar is reported in the log and gives None.
    """
    if parser == "muse":
        from vllm.parser.turn_grammar.muse_format import MUSE

        return MUSE
    if parser not in ("beam", "response_template"):
        return None
    # Not at the top: the parsers import this package.
    from vllm.parser.response_template import template_of
    from vllm.parser.turn_grammar.template_format import turn_format

    if (template := template_of(tokenizer)) is None:
        return None
    try:
        return turn_format(template, label="beam")
    except (NotGrammar, KeyError, re.error) as error:
        logger.warning_once("The response template has no grammar: %s.", str(error))
        return None
