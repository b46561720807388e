# SPDX-License-Identifier: Apache-2.0
"""An assistant turn as a client sees it: reasoning, content and tool calls, in pieces while it is generated."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from vllm.parser.chat_format import json_text
from vllm.parser.chat_format.content import field_value
from vllm.parser.chat_format.conversion import convert, schema_types
from vllm.parser.chat_format.references import followed, typed_by_values
from vllm.parser.chat_format.regions import RegionParser
from vllm.parser.chat_format.scanning import Wait, Watch, wait_for, watch_for
from vllm.parser.chat_format.steady import SteadyTurn
from vllm.parser.chat_format.template import THINKING, TOOL_CALLS, ResponseTemplate, TemplateField
from vllm.parser.chat_format.turn_piece import ARGUMENTS, CONTENT, REASONING, TurnMode, TurnPiece
from vllm.parser.chat_format.xml_call import ParameterTypes, XmlCall, streams_arguments

logger = logging.getLogger(__name__)


def tool_properties(tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Declared parameters by tool name, from tools in either API's form (`{"function": {...}}` or flat)."""
    found = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            whole = followed(parameters, parameters) if isinstance(parameters, Mapping) else {}
            properties = whole.get("properties")
            declared = properties if isinstance(properties, Mapping) else {}
            properties = {key: followed(schema, parameters) for key, schema in declared.items()}
            if function.get("strict"):
                # Its arguments are held to its fixed values, so they are read as these.
                properties = {key: typed_by_values(schema) for key, schema in properties.items()}
            found[function["name"]] = properties
    return found


class TemplateTurn(SteadyTurn):
    """Reads one generated turn by a response template. `feed` and `finish` return what is new (a TurnPiece)."""

    def __init__(
        self, template: ResponseTemplate, prefix: str, properties: Mapping[str, Mapping[str, Any]], mode: TurnMode
    ):
        super().__init__()
        self._mode = mode
        self._properties = properties
        self._openers = template.opener_endings
        self._types: dict[str, ParameterTypes] = {}
        self._watch_in: dict[str, Watch] = {}
        self._streams = mode.fragments and template.tool_calls is not None and streams_arguments(template.tool_calls)
        self._calls = 0
        self._in_prompt = True
        self._call: XmlCall | None = None
        self._announced = False
        self._name = ""
        self._captures: dict[str, str] = {}
        self._body: list[str] = []
        self._regions = RegionParser(template, self, prefix)
        self._in_prompt = False

    @property
    def open_field(self) -> TemplateField | None:
        return self._regions.field

    def _read(self, text: str) -> None:
        self._announce()
        self._regions.feed(text)

    def _finish(self) -> None:
        self._regions.finish()

    def _steady(self) -> Watch | Wait | None:
        beginnings, field = self._regions.beginnings, self._regions.field
        if field is None:
            return self._until(self._openers, self._regions.unread) if self._regions.drops_text else None
        if self._call is not None and (unread := self._call.unread) is not None:
            closers = field.close.endings if field.close is not None else frozenset()
            openers = self._call.opener_ends
            endings = None if closers is None or openers is None else closers | openers
            return self._until(endings, unread + self._regions.unread)
        if beginnings is None:
            return None
        if (watch := self._watch_in.get(field.name)) is None:
            value_ends = self._call.value_ends if self._call is not None else None
            watch = self._watch_in[field.name] = watch_for(beginnings | (value_ends or frozenset()))
        self._write = None
        if field.name == THINKING and self._mode.reasoning:
            self.part = REASONING
        elif field.name != TOOL_CALLS or not self._mode.tools:
            self.part = CONTENT
        else:
            if self._call is None or not self._call.steady:
                return None
            self.part, self.index, self._write = ARGUMENTS, self._calls, self._call.write
        return watch

    def _until(self, endings: frozenset[str] | None, unread: str) -> Wait | None:
        """A wait for `endings`; None if they are not known, or if `unread` holds one that more text may settle."""
        if endings is None:
            return None
        wait, self._behind = wait_for(endings), unread
        return None if unread and wait.search(unread) else wait

    def _skip(self, count: int, last: str) -> None:
        self._regions.skip(count, last)
        if self._call is not None:
            self._call.skip(count, last)

    # RegionHandler

    def opened(self, field: TemplateField, captures: dict[str, str], visible: str, at: int) -> None:
        if field.name != TOOL_CALLS:
            return
        if not self._mode.tools:
            self._show(visible)
            return
        self._captures, self._body, self._announced = captures, [], False
        self._name = captures.get("name", "")
        if self._streams and self._name:
            if (types := self._types.get(self._name)) is None:
                types = self._types[self._name] = ParameterTypes(self._properties.get(self._name, {}))
            self._call = XmlCall(field, types)
            if not self._in_prompt:
                self._announce()

    def text(self, field: TemplateField, text: str, visible: str) -> None:
        if field.name == THINKING and self._mode.reasoning:
            if visible:
                self._piece.reasoning.append(visible)
        elif field.name != TOOL_CALLS or not self._mode.tools:
            self._show(visible)
        elif self._call is not None:
            self._emit(self._call.feed(text))
        else:
            self._body.append(text)

    def closed(self, field: TemplateField, visible: str, complete: bool, at: int) -> None:
        if field.name != TOOL_CALLS:
            return
        if not self._mode.tools:
            self._show(visible)
        elif self._call is not None:
            self._emit(self._call.finish(complete, self._cut))
            if not self._in_prompt:
                self._calls += 1
            self._call = None
        elif not self._in_prompt:
            self._finish_whole_call(field)

    def _show(self, text: str) -> None:
        if text and not self._in_prompt:
            self._piece.content.append(text)

    def _announce(self) -> None:
        """Send the open call's name, and what the prompt already wrote of its arguments."""
        if self._call is not None and not self._announced:
            self._announced = True
            self._piece.add_call(self._calls, self._name, "".join(self._body))

    def _emit(self, arguments: str) -> None:
        if self._in_prompt:
            self._body.append(arguments)
        elif arguments:
            self._piece.add_call(self._calls, None, arguments)

    def _finish_whole_call(self, field: TemplateField) -> None:
        try:
            calls = _whole_calls(field_value(field, "".join(self._body), self._captures), self._properties)
        except (ValueError, TypeError) as error:
            logger.warning("Dropping a malformed tool call: %s", error)
            return
        if not calls:
            logger.warning("Dropping a tool call without a name or arguments.")
        for name, arguments in calls:
            self._piece.add_call(self._calls, name, arguments)
            self._calls += 1


def _whole_calls(value: Any, properties: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, arguments) of the calls in a parsed tool region; none if one of them is incomplete."""
    calls = []
    for item in value if isinstance(value, list) else [value]:
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            return []
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not name or arguments is None:
            return []
        if isinstance(arguments, dict):
            arguments = _converted(arguments, properties.get(name, {}))
        calls.append((name, arguments if isinstance(arguments, str) else json_text.dumps(arguments)))
    return calls


def _converted(arguments: dict[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    typed = {}
    for key, value in arguments.items():
        types = schema_types(properties.get(key))
        if isinstance(value, str):
            value = convert(value, types)
        elif isinstance(value, list) and types and "array" not in types:
            # Several values of one key, collected by `merge_duplicates`.
            value = [convert(item, types) if isinstance(item, str) else item for item in value]
        typed[key] = value
    return typed


def parse_turn(
    template: ResponseTemplate,
    text: str,
    prefix: str,
    properties: Mapping[str, Mapping[str, Any]],
    mode: TurnMode | None = None,
) -> TurnPiece:
    """The whole turn at once; by default without fragments."""
    turn = TemplateTurn(template, prefix, properties, mode or TurnMode(fragments=False))
    piece = turn.feed(text)
    piece.extend(turn.finish())
    return piece
