# SPDX-License-Identifier: Apache-2.0
"""One tool call with `xml-inline` arguments, written out as JSON while it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.parser.chat_format.arguments import ArgumentsWriter
from vllm.parser.chat_format.conversion import SchemaConversion, schema_types
from vllm.parser.chat_format.scanning import Window, find
from vllm.parser.chat_format.tags import TagPattern
from vllm.parser.chat_format.template import TemplateField

_STANDARD_TRANSFORM = {"name": "{name}", "arguments": "{content}"}


def streams_arguments(field: TemplateField) -> bool:
    """Whether calls of `field` can be written out before they end: the opener names the tool, the content is tags that
    can be cut at their value, and each value is plain text."""
    if field.content != "xml-inline" or field.transform_each or field.open is None:
        return False
    transform = field.transform
    if not isinstance(transform, dict) or transform.get("function") != _STANDARD_TRANSFORM:
        return False
    if "name" not in field.open.pattern.groupindex or field.content_args.get("merge_duplicates", False):
        return False
    parser = field.content_args.get("value_parser") or {"name": "text", "args": {"strip": False}}
    return parser.get("name", "text") == "text" and TagPattern.of(field.content_args["tag_pattern"]).tail is not None


def conversion_for(properties: Mapping[str, Any], key: str) -> SchemaConversion | None:
    """How parameter `key` becomes JSON; None if it is a string whatever its text."""
    types = schema_types(properties.get(key))
    return SchemaConversion(types) if set(types) - {"string"} else None


class XmlCall:
    """Arguments of one call. properties: the called tool's declared parameters by name (JSON Schema each); empty for an
    unknown tool. `feed` and `finish` return the next characters of the arguments object."""

    def __init__(self, field: TemplateField, properties: Mapping[str, Any]):
        tags = TagPattern.of(field.content_args["tag_pattern"])
        assert tags.head is not None
        assert tags.tail is not None
        self._head, self._tail = [tags.head], [tags.tail]
        self._quick = tags.tail.only_first_char
        parser = field.content_args.get("value_parser")
        self._strip = parser is not None and parser.get("args", {}).get("strip", True)
        self._properties = properties
        self._window = Window()
        self._in_value = False
        self._writer = ArgumentsWriter()

    def feed(self, text: str) -> str:
        window = self._window
        if self._in_value and self._quick is not None and self._quick not in text and window.empty:
            window.pass_through(text)
            return self._writer.text(text)
        window.append(text)
        return self._process(final=False)

    def finish(self, complete: bool) -> str:
        """complete: the model closed the call itself. If it did not, a value of which something was sent stays open:
        the reader of the stream sees that it was cut."""
        out = self._process(final=True)
        if self._in_value and not self._writer.drop_value():
            return out + self._writer.end_value() + self._writer.close() if complete else out
        return out + self._writer.close()

    def _process(self, final: bool) -> str:
        window, writer, out = self._window, self._writer, []
        while True:
            _, match, hold = find(self._tail if self._in_value else self._head, window, final)
            if match is None:
                if self._in_value and hold > window.pos and not final:
                    out.append(writer.text(window.text[window.pos : hold]))
                window.pos = max(window.pos, hold)
                return "".join(out)
            if self._in_value:
                out.append(writer.text(window.text[window.pos : match.start()]))
                out.append(writer.end_value())
            else:
                key = match.group("key")
                writer.key(key, conversion_for(self._properties, key), self._strip)
            self._in_value = not self._in_value
            window.pos = match.end()
