# SPDX-License-Identifier: Apache-2.0
"""Splitting a growing assistant turn into the regions of a response template.

Outside every region all openers are watched; inside a region only its own closers, so openers there are plain text.
Text is passed on as soon as it cannot be part of a delimiter.
"""

from __future__ import annotations

from typing import Protocol

from vllm.parser.chat_format.delimiters import Delimiter
from vllm.parser.chat_format.scanning import Window, find, watch_for
from vllm.parser.chat_format.template import ResponseTemplate, TemplateField


class RegionHandler(Protocol):
    """Receives the regions of one turn, in order. `visible` is the part of a text that the model generated, without
    what stood in the prompt. `at` counts characters from the start of the message, prompt included."""

    def opened(self, field: TemplateField, captures: dict[str, str], visible: str, at: int) -> None:
        """visible: the opener. at: where the region's text begins."""

    def text(self, field: TemplateField, text: str, visible: str) -> None: ...

    def closed(self, field: TemplateField, visible: str, complete: bool, at: int) -> None:
        """visible: the closer. at: where the region's text ends. complete: False if only the end of the turn ended
        it."""


class RegionParser:
    """Parses one turn. `prefix` is the prompt's text: what follows its last start anchor is parsed first, so that a
    prompt may end anywhere inside a region or a delimiter."""

    def __init__(self, template: ResponseTemplate, handler: RegionHandler, prefix: str = ""):
        self.template = template
        self._handler = handler
        self._window = Window()
        self._implicit = template.fields[template.implicit] if template.implicit is not None else None
        self._field = self._implicit
        self._opened = False
        self._prefix_end = 0
        self._region_start = 0
        self._openers: list[Delimiter] = [field.open for field in template.openers]  # type: ignore[misc]
        self._outside = list(self._openers)
        if self._implicit is not None and self._implicit.close is not None:
            self._outside.append(self._implicit.close)
        self._watched: list[Delimiter] = self._outside
        # What the open region's closers begin with; None outside and where it is not known.
        self._beginnings: frozenset[str] | None = None
        if prefix and (start := template.after_last_anchor(prefix)):
            self._prefix_end = len(start)
            self._window.append(start)
            self._process(final=False)

    @property
    def field(self) -> TemplateField | None:
        """The field whose region is open; None outside, and before the implicit field's first character."""
        return self._field if self._opened else None

    @property
    def beginnings(self) -> frozenset[str] | None:
        """What a delimiter can begin with here; None if that is not known, or if text is held back."""
        return self._beginnings if self._window.empty else None

    @property
    def drops_text(self) -> bool:
        """Whether only an opener can matter here, and any other text is nobody's."""
        return not self._opened and self._implicit is None

    @property
    def unread(self) -> str:
        """Text held back because it may be part of a delimiter."""
        return self._window.text[self._window.pos :]

    def skip(self, count: int, last: str) -> None:
        """Count characters of the open region that hold none of `beginnings`; `last` are the final ones."""
        self._window.skip(count, last)

    @property
    def length(self) -> int:
        """Characters seen so far, those of the prompt's open message included."""
        return self._window.base + len(self._window.text)

    @property
    def has_output(self) -> bool:
        """Whether any generated text was fed."""
        return self.length > self._prefix_end

    def feed(self, text: str) -> None:
        if not text:
            return
        window = self._window
        if self._beginnings is not None and window.empty and watch_for(self._beginnings).search(text) is None:
            window.skip(len(text), text)
            self._handler.text(self._field, text, text)  # type: ignore[arg-type]
            return
        window.append(text)
        self._process(final=False)

    def finish(self) -> None:
        """The turn is over. A turn that generated nothing says nothing."""
        if not self.has_output:
            return
        if rest := self._rest_of_closer():
            self._window.append(rest)
        self._process(final=True)

    def _rest_of_closer(self) -> str:
        """What is missing of a closer that already ended its region and lacks only (part of) the next start anchor."""
        if not self._opened or self._field is None or self._field.close is None:
            return ""
        region = self._window.text[max(0, self._region_start - self._window.base) :]
        for closer in self._field.close.literals:
            for anchor in self.template.anchors:
                if closer == anchor or not closer.endswith(anchor):
                    continue
                for cut in range(len(closer) - 1, len(closer) - len(anchor) - 1, -1):
                    if region.endswith(closer[:cut]):
                        return closer[cut:]
        return ""

    def _process(self, final: bool) -> None:
        window = self._window
        while True:
            index, match, hold = find(self._watched, window, final)
            if match is None:
                self._advance(len(window.text) if final else hold)
                if final:
                    self._close(window.pos, window.pos, complete=False)
                return
            start, end = match.span()
            self._advance(start)
            if self._watched is self._outside and index < len(self._openers):
                self._close(start, start, complete=True)
                window.pos = end
                self._open(self.template.openers[index], match)
                continue
            had_text = self._opened
            self._close(start, end, complete=True)
            window.pos = end
            if not had_text and start == end:
                # A zero-width closer of the empty implicit region would match here forever.
                self._advance(len(window.text) if final else hold)
                return

    def _advance(self, end: int) -> None:
        """Pass on the unread text up to index `end` of the window."""
        window = self._window
        if end <= window.pos:
            return
        text, offset = window.text[window.pos : end], window.offset
        window.pos = end
        if self._field is None:
            return
        if not self._opened:
            self._opened = True
            self._region_start = offset
            self._handler.opened(self._field, {}, "", offset)
        visible = text if offset >= self._prefix_end else text[self._prefix_end - offset :]
        self._handler.text(self._field, text, visible)

    def _open(self, field: TemplateField, match) -> None:
        self._field, self._opened = field, True
        self._region_start = self._window.base + match.end()
        self._watched = [field.close] if field.close is not None else []
        self._beginnings = field.close.beginnings if field.close is not None else frozenset()
        captures = {name: value for name, value in match.groupdict().items() if value is not None}
        self._handler.opened(field, captures, self._visible(match.start(), match.end()), self._region_start)

    def _close(self, start: int, end: int, complete: bool) -> None:
        field, opened = self._field, self._opened
        self._field, self._opened = self._implicit, False
        self._watched, self._beginnings = self._outside, None
        if field is not None and opened:
            self._handler.closed(field, self._visible(start, end), complete, self._window.base + start)

    def _visible(self, start: int, end: int) -> str:
        begin = max(start, self._prefix_end - self._window.base)
        return self._window.text[begin:end]
