# SPDX-License-Identifier: Apache-2.0
"""The body of a Muse tool message: invoke tags with parameter tags, read while it is written.

The tags look like XML but are not: values are unescaped text, and end at the first parameter closer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import regex
from vllm.parser.chat_format import json_text
from vllm.parser.chat_format.arguments import ArgumentsWriter
from vllm.parser.chat_format.conversion import JsonConversion, schema_types
from vllm.parser.chat_format.delimiters import Delimiter
from vllm.parser.chat_format.scanning import Window, find

logger = logging.getLogger(__name__)


def _regex(source: str) -> Delimiter:
    return Delimiter(regex.compile(source, regex.DOTALL), source=source, fixed_end=True)


# Attributes may hold `>` only inside quotes, and `<` nowhere: a tag with a quote out of step is then none at once,
# whatever follows. A word boundary would not do after the tag name: a partial text decides it too early.
_QUOTED = r'[^"<]'
_ATTRIBUTES = rf'(?P<attributes>(?:[^"<>]|"{_QUOTED}*")*)'
# A parameter's name that a tag can hold.
PARAMETER_NAME = f"{_QUOTED}+"
INVOKE = _regex(rf"<atem:invoke(?=[\s>]){_ATTRIBUTES}>")
PARAMETER = _regex(rf"<atem:parameter(?=[\s>]){_ATTRIBUTES}>")
_NAME = regex.compile(r'\sname="([^"]+)"')
INVOKE_END = _regex(r"</atem:invoke>")
PARAMETER_END = _regex(r"</atem:parameter>")
VALUE_ENDS = ("</atem:parameter>", "</atem:invoke>")
# An invoke closer inside a value is text, unless the message or the next call follows: then a parameter closer is
# missing.
VALUE_BREAKS = tuple(f"</atem:invoke>{end}<atem:invoke" for end in ("", "\n", "\r\n"))
_LOST_END = Delimiter(
    regex.compile(
        r"</atem:invoke>(?:(?:\r?\n)?(?=<atem:invoke[\s>])|\s*(?:</atem:function_calls>\s*)?\Z)", regex.DOTALL
    )
)

# A closer that the token limit cut.
_HALF_END = regex.compile(r"(?:</atem:parameter>|</atem:invoke>)$")

# White space behind an invoke tag that may still precede its first parameter.
_MOST_SPACE = 64
_BETWEEN, _IN_CALL, _IN_VALUE = range(3)
_WATCHED = {_BETWEEN: [INVOKE], _IN_CALL: [PARAMETER, INVOKE_END], _IN_VALUE: [PARAMETER_END, _LOST_END]}


def _name(match: regex.Match) -> str | None:
    """The name attribute of an opening tag."""
    found = _NAME.search(match.group("attributes"))
    return found.group(1) if found else None


# emit(name, arguments): name is set once, with the call's first piece.
Emit = Callable[[str | None, str], None]


def called_name(written: str, registered: Mapping[str, Any]) -> str:
    """The tool meant by an invoke tag. A tool without a namespace is offered as `x.*`, so the model writes `x.x`."""
    head, dot, tail = written.partition(".")
    if written not in registered and dot and head == tail and head in registered:
        return head
    return written


class MuseCalls:
    """Reads one tool message. properties: declared parameters by tool name. `emit` is called with each piece of a
    call."""

    def __init__(self, properties: Mapping[str, Mapping[str, Any]], emit: Emit, fragments: bool):
        self._properties = properties
        self._emit = emit
        self._fragments = fragments
        self._window = Window()
        self._state = _BETWEEN
        self._parameters: Mapping[str, Any] = {}
        self._writer = ArgumentsWriter()
        self._whole: dict[str, str] = {}
        self._key, self._name = "", ""
        self._value: list[str] = []
        self._conversion: JsonConversion | None = None
        self._found = False
        self._glued: tuple[str, str, str] | None = None

    def feed(self, text: str) -> None:
        self._window.append(text)
        self._process(final=False)

    @property
    def write(self) -> Callable[[str], str] | None:
        """What writes text of the open value that holds no part of a tag; None if there is none, or if text is held
        back. `skip` must count the same text."""
        return self._writer.write if self._fragments and self._state == _IN_VALUE and self._window.empty else None

    @property
    def between_values(self) -> bool:
        """Whether only a complete tag can matter: text is not a value's."""
        return self._state != _IN_VALUE and self._glued is None

    def skip(self, count: int, last: str) -> None:
        self._window.skip(count, last)

    def finish(self, complete: bool, cut: bool = False) -> None:
        """The message is over. complete: the model ended it itself. cut: it was stopped; what was sent of a call then
        stays open."""
        self._process(final=True, complete=complete)
        if self._state == _IN_VALUE:
            self._lose_value(complete)
        if self._state == _IN_CALL and not (cut and self._fragments and not complete):
            self._end_call()
        if not self._found:
            logger.warning("Dropping a tool message without a named call.")

    def _process(self, final: bool, complete: bool = True) -> None:
        window = self._window
        while True:
            if self._glued is not None and not self._settle_name(final):
                return
            index, match, hold = find(_WATCHED[self._state], window, final)
            if match is None:
                end = len(window.text) if final else hold
                if final and not complete and (half := _HALF_END.search(window.text, window.pos, partial=True)):
                    end = half.start()
                if self._state == _IN_VALUE and end > window.pos:
                    self._text(window.text[window.pos : end])
                window.pos = max(window.pos, end)
                return
            if self._state == _IN_VALUE:
                self._text(window.text[window.pos : match.start()])
                window.pos = match.end()
                if index == 1:
                    self._lose_value(complete=True)
                    if self._state == _IN_CALL:
                        self._end_call()
                else:
                    self._end_value()
                continue
            window.pos = match.end()
            if self._state == _BETWEEN:
                self._begin_call(_name(match))
            elif index == 0:
                self._begin_value(_name(match))
            else:
                self._end_call()

    def _begin_call(self, written: str | None) -> None:
        if not written:
            return
        self._found = True
        self._state = _IN_CALL
        head, _, key = written.rpartition(".")
        name = called_name(written, self._properties)
        if name not in self._properties and key in self._properties.get(head, ()):
            self._glued = name, head, key
        else:
            self._start_call(name)

    def _settle_name(self, final: bool) -> bool:
        """Tell a tool with a dot in its name from one whose first parameter tag the model left out, writing the
        parameter's name behind the tool's: then a value follows, and no tag. False while that is open."""
        assert self._glued is not None
        begun = self._window.text[self._window.pos : self._window.pos + _MOST_SPACE].lstrip()
        if not begun and not final and len(self._window.text) - self._window.pos < _MOST_SPACE:
            return False
        (name, head, key), self._glued = self._glued, None
        if not begun or begun[0] == "<":
            self._start_call(name)
        else:
            self._start_call(head)
            self._begin_value(key)
        return True

    def _start_call(self, name: str) -> None:
        self._name = name
        if self._properties and self._name not in self._properties:
            logger.warning("The model calls %r, which is not among the request's tools.", self._name)
        self._parameters = self._properties.get(self._name, {})
        self._writer, self._whole = ArgumentsWriter(), {}
        if self._fragments:
            self._emit(self._name, "")

    def _begin_value(self, key: str | None) -> None:
        if not key:
            return
        types = schema_types(self._parameters.get(key))
        conversion = None if types == ("string",) else JsonConversion(types)
        self._state, self._key, self._value = _IN_VALUE, key, []
        if self._fragments:
            self._writer.key(key, conversion)
        else:
            self._conversion = conversion

    def _text(self, text: str) -> None:
        if not self._fragments:
            self._value.append(text)
        elif out := self._writer.text(text):
            self._emit(None, out)

    def _end_value(self) -> None:
        self._state = _IN_CALL
        if self._fragments:
            if out := self._writer.end_value():
                self._emit(None, out)
        else:
            text = "".join(self._value)
            conversion = self._conversion
            self._whole[self._key] = conversion.value(text) if conversion else json_text.dumps(text)

    def _lose_value(self, complete: bool) -> None:
        """The open value will get no closer. What was sent of it stays; the object is closed only if the model went
        on."""
        if not self._fragments or self._writer.drop_value():
            self._state = _IN_CALL
        elif complete:
            self._end_value()
        else:
            self._state = _BETWEEN

    def _end_call(self) -> None:
        self._state = _BETWEEN
        if self._fragments:
            self._emit(None, self._writer.close())
        else:
            pairs = (f"{json_text.dumps(key)}: {value}" for key, value in self._whole.items())
            self._emit(self._name, "{" + ", ".join(pairs) + "}")
