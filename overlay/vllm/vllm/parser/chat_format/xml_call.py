# SPDX-License-Identifier: Apache-2.0
"""One tool call with `xml-inline` arguments, written out as JSON while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class ParameterTypes(dict[str, tuple[str, ...]]):
    """The types that each parameter of a tool may become; none if it is a string whatever its text. Found when first
    asked for, and kept while one turn calls the tool again. properties: its declared parameters (JSON Schema each)."""

    def __init__(self, properties: Mapping[str, Any]):
        super().__init__()
        self._properties = properties

    def __missing__(self, key: str) -> tuple[str, ...]:
        if key not in self._properties:
            return ()
        types = schema_types(self._properties[key])
        self[key] = found = types if set(types) - {"string"} else ()
        return found


class XmlCall:
    """Arguments of one call. `feed` and `finish` return the next characters of the arguments object."""

    def __init__(self, field: TemplateField, types: ParameterTypes):
        tags = TagPattern.of(field.content_args["tag_pattern"])
        assert tags.head is not None
        assert tags.tail is not None
        self._head, self._tail = [tags.head], [tags.tail]
        # What the end of a value can begin with, and what the opener of one ends with; None if that is not known.
        self.value_ends, self.opener_ends = tags.tail.beginnings, tags.head.endings
        parser = field.content_args.get("value_parser")
        self._strip = parser is not None and parser.get("args", {}).get("strip", True)
        self._types = types
        self._window = Window()
        self._in_value = False
        self._writer = ArgumentsWriter()

    def feed(self, text: str) -> str:
        self._window.append(text)
        return self._process(final=False)

    @property
    def steady(self) -> bool:
        """Whether a value is open, of which nothing is held back, and `value_ends` is known."""
        return self._in_value and self._window.empty and self.value_ends is not None

    @property
    def unread(self) -> str | None:
        """Outside values, where nothing but the next opener matters: text that may be part of it. None in a value."""
        return None if self._in_value else self._window.text[self._window.pos :]

    @property
    def write(self) -> Callable[[str], str]:
        """What writes text of the open value that holds none of `value_ends`; `skip` must count the same text."""
        return self._writer.write

    def skip(self, count: int, last: str) -> None:
        self._window.skip(count, last)

    def finish(self, complete: bool, cut: bool = False) -> str:
        """complete: the model closed the call itself. If it did not, a value of which something was sent stays open,
        and the whole object if the model was cut: the reader of the stream sees that there would be more."""
        out = self._process(final=True)
        if self._in_value and not self._writer.drop_value():
            return out + self._writer.end_value() + self._writer.close() if complete else out
        return out if cut and not complete else out + self._writer.close()

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
                types = self._types[key]
                writer.key(key, SchemaConversion(types) if types else None, self._strip)
            self._in_value = not self._in_value
            window.pos = match.end()
