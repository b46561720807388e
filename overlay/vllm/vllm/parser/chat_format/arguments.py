# SPDX-License-Identifier: Apache-2.0
"""A call's arguments written as a JSON object while the model writes its parameters.

Everything returned, joined, is at each moment a prefix of the final object: text is sent only when nothing that follows
can change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vllm.parser.chat_format.json_text import string_body


class Conversion(Protocol):
    def undecided(self, piece: str) -> bool: ...

    def value(self, text: str) -> str: ...


class ArgumentsWriter:
    """Writes one JSON object. Feed it keys and pieces of values; each method returns the text that may be sent now.

    A key that was written before is dropped with its value: what has been sent cannot be taken back.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._skipping = False
        self._conversion: Conversion | None = None
        self._strip = False
        self._held: list[str] = []
        self._head = ""
        self._started = False

    def key(self, key: str, conversion: Conversion | None, strip: bool = False) -> None:
        """Begin a parameter. conversion: None if the value is a string whatever its text. strip: the value's
        surrounding whitespace does not count."""
        self._skipping = key in self._keys
        self._conversion, self._strip, self._held, self._started = conversion, strip, [], False
        self._head = ("{" if not self._keys else ", ") + f'"{string_body(key)}": '
        self._keys.add(key)

    def text(self, piece: str) -> str:
        """The next characters of the value."""
        if self._skipping or not piece:
            return ""
        if self._conversion is not None:
            self._held.append(piece)
            if self._conversion.undecided(piece):
                return ""
            self._conversion = None
            piece = "".join(self._held)
            self._held = []
        if self._strip:
            piece = self._without_outer_space(piece)
            if not piece:
                return ""
        if self._started:
            return string_body(piece)
        self._started = True
        return self._head + '"' + string_body(piece)

    @property
    def write(self) -> Callable[[str], str]:
        """`text`, or less than it where the rest of the value needs only be escaped."""
        escapes = self._started and not self._skipping and self._conversion is None and not self._strip
        return string_body if escapes else self.text

    def _without_outer_space(self, piece: str) -> str:
        kept = piece.rstrip()
        if not kept:
            if self._started:
                self._held.append(piece)
            return ""
        before = "".join(self._held) if self._started else ""
        self._held = [piece[len(kept) :]]
        return before + (kept if self._started else kept.lstrip())

    def end_value(self) -> str:
        """The value is complete."""
        if self._skipping:
            return ""
        if self._conversion is not None:
            text = "".join(self._held)
            return self._head + self._conversion.value(text.strip() if self._strip else text)
        return '"' if self._started else self._head + '""'

    def drop_value(self) -> bool:
        """The value will not be completed. True if nothing of it was sent, so that the object can still be closed."""
        if not self._started and not self._skipping and self._head.startswith("{"):
            self._keys.clear()
        return self._skipping or not self._started

    def close(self) -> str:
        """The object is complete."""
        return "}" if self._keys else "{}"
