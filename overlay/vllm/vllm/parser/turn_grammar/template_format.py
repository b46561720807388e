# SPDX-License-Identifier: Apache-2.0
"""The turn format of a response template.

The template is the JSON object from the model repository's tokenizer configuration. Its
validity is the template engine's business; here it is only read, and `NotGrammar` says which
field cannot be turned into a grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.parser.turn_grammar import patterns
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.wire_format import CallSyntax, ParameterSyntax, TurnFormat


def turn_format(template: Mapping[str, Any], label: str = "beam") -> TurnFormat:
    fields = template["fields"]
    thinking = fields.get("thinking")
    answer = fields.get("content")
    calls = fields.get("tool_calls")
    return TurnFormat(
        label=label,
        anchors=_anchors(template),
        thinking=None if thinking is None else _region("thinking", thinking),
        answer=None if answer is None else _region("content", answer),
        call=None if calls is None else _call(calls, template),
        anchor_texts=_literals(patterns.nodes(_anchors(template))),
    )


def _anchors(template: Mapping[str, Any]) -> str:
    if (pattern := template.get("start_anchor_pattern")) is not None:
        return pattern
    return "|".join(re.escape(anchor) for anchor in _listed(template["start_anchor"]))


def _literals(items: list[patterns.Node]) -> tuple[str, ...]:
    """All strings `items` can match; empty if they are not a few literals."""
    try:
        return tuple(patterns.literal_forms(items))
    except NotGrammar:
        return ()


def _listed(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _spellings(name: str, field: Mapping[str, Any], side: str) -> tuple[str, ...]:
    """All literal spellings of a field's opener or closer."""
    if (literal := field.get(side)) is not None:
        return _listed(literal)
    if (pattern := field.get(f"{side}_pattern")) is not None:
        try:
            return tuple(patterns.literal_forms(patterns.nodes(pattern)))
        except NotGrammar as error:
            raise NotGrammar(f"response template field {name!r}, {side}: {error}") from error
    raise NotGrammar(f"response template field {name!r} has no {side} delimiter")


def _region(name: str, field: Mapping[str, Any]):
    return _spellings(name, field, "open"), _spellings(name, field, "close")


def _call(field: Mapping[str, Any], template: Mapping[str, Any]) -> CallSyntax:
    where = "response template field 'tool_calls'"
    opener = field.get("open_pattern")
    if opener is None or "name" not in re.compile(opener).groupindex:
        raise NotGrammar(f"{where}: the opener does not capture the tool's name")
    if field.get("content") != "xml-inline":
        raise NotGrammar(f"{where}: only 'xml-inline' content has a grammar")
    items = patterns.nodes(opener)
    index, name = patterns.named_group(items, opener, "name")
    excluded = patterns.excluded_class(name)
    closers = _spellings("tool_calls", field, "close")
    return CallSyntax(
        before=patterns.render(items[:index]),
        begins=_literals(items[:index]),
        after=patterns.render(items[index + 1 :]),
        name=patterns.render(name),
        name_class=excluded,
        closers=closers,
        separators=closers if field.get("repeats") else (),
        parameter=replace(_parameter(field["content_args"], where), breaks=closers),
    )


def _parameter(args: Mapping[str, Any], where: str) -> ParameterSyntax:
    pattern = args["tag_pattern"]
    strips = ((args.get("value_parser") or {}).get("args") or {}).get("strip", False)
    items = patterns.nodes(pattern)
    try:
        at_key, key = patterns.named_group(items, pattern, "key")
        at_value, value = patterns.named_group(items, pattern, "value")
        begin = patterns.literal_forms(items[:at_key])
        middle = patterns.literal_forms(items[at_key + 1 : at_value])
        ends, open_ends = patterns.split_lookahead(items[at_value + 1 :])
        key_text = patterns.render(key)
    except NotGrammar as error:
        raise NotGrammar(f"{where}, tag_pattern: {error}") from error
    if len(begin) != 1 or len(middle) != 1 or not patterns.is_lazy_text(value) or not ends:
        raise NotGrammar(
            f"{where}, tag_pattern: needs one literal before and after the key, a lazy value and a literal closer"
        )
    for closer, follow in open_ends:
        if not begin[0].startswith(follow):
            raise NotGrammar(f"{where}, tag_pattern: {closer!r} waits for {follow!r}, which does not begin a parameter")
    return ParameterSyntax(
        begin=begin[0],
        middle=middle[0],
        key=key_text,
        ends=tuple(ends),
        open_ends=tuple(open_ends),
        strips=bool(strips),
    )
