# SPDX-License-Identifier: Apache-2.0
"""The steady states of a turn. Most text lies inside one region, holds nothing that could begin a delimiter, and goes
to one place: a token of it costs one search and, in an argument, one escape. Most other text is part of a delimiter,
which is read when it is complete: a token of it costs one search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vllm.parser.chat_format.scanning import CONTEXT, Wait, Watch
from vllm.parser.chat_format.turn_piece import ARGUMENTS, REASONING, TurnPiece

# Characters after which a delimiter that does not become complete is looked at.
_LONGEST_WAIT = 256


class SteadyTurn:
    """Base of the turn readers. A subclass reads any text in `_read`, says in `_steady` where plain text goes after it,
    and counts in `_skip` what it did not get to read."""

    def __init__(self) -> None:
        # Where the text that `plain` returns belongs: a part, and for arguments the index of the call.
        self.part = REASONING
        self.index = 0
        self._piece = TurnPiece()
        self._cut = False
        self._watch: Watch | None = None
        self._wait: Wait | None = None
        # What was read before a wait and may be part of the delimiter.
        self._behind = ""
        self._write: Callable[[str], str] | None = None
        self._carry = ""
        self._skipped = 0
        # The last pieces of what was skipped, for lookbehinds.
        self._last: deque[str] = deque(maxlen=CONTEXT)

    def _read(self, text: str) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _steady(self) -> Watch | Wait | None:
        """How to tell plain text from other text from here on, after setting `part`, `index` and `_write`; or, where
        only a complete delimiter can matter, how to find the end of one, after setting `_behind`. None if all text must
        be read."""
        raise NotImplementedError

    def _skip(self, count: int, last: str) -> None:
        raise NotImplementedError

    def plain(self, text: str) -> str | None:
        """What plain text adds to `part`, as a string; None if `text` must be given to `read` instead."""
        watch = self._watch
        if watch is None:
            if self._wait is None:
                return None
            find_end, overlap = self._wait
            known = self._behind + self._carry
            start = len(known) - overlap
            if len(known) + len(text) > _LONGEST_WAIT or find_end(known + text, start if start > 0 else 0) is not None:
                return None
            self._carry += text
            return ""
        search, halves = watch
        if carry := self._carry:
            text = carry + text
        if (match := search(text)) is None:
            if carry:
                self._carry = ""
        else:
            start = match.start()
            # A value's reader holds back what could begin its end, up to where the region's end might begin.
            if (half := text[start:]) not in halves or text[start - 1 : start] in halves:
                return None
            self._carry, text = half, text[:start]
        if not text:
            return ""
        self._skipped += len(text)
        self._last.append(text)
        write = self._write
        return text if write is None else write(text)

    def read(self, text: str) -> TurnPiece:
        """What any text adds to the turn."""
        self._settle(text)
        state = self._steady()
        self._watch, self._wait = (state, None) if type(state) is Watch else (None, state)
        return self._take()

    def feed(self, text: str) -> TurnPiece:
        """`plain` or `read`, whichever `text` needs."""
        added = self.plain(text)
        if added is None:
            return self.read(text)
        piece = TurnPiece()
        if not added:
            return piece
        if self.part == ARGUMENTS:
            piece.add_call(self.index, None, added)
        else:
            (piece.reasoning if self.part == REASONING else piece.content).append(added)
        return piece

    def finish(self, cut: bool = False) -> TurnPiece:
        """What the end of the turn adds. cut: the model was stopped; a call that it did not close stays open."""
        self._cut = cut
        self._settle("")
        self._watch = self._wait = None
        self._finish()
        return self._take()

    def _settle(self, text: str) -> None:
        if self._skipped:
            self._skip(self._skipped, "".join(self._last)[-CONTEXT:])
            self._skipped = 0
            self._last.clear()
        text = self._carry + text
        self._carry = ""
        if text:
            self._read(text)

    def _take(self) -> TurnPiece:
        piece, self._piece = self._piece, TurnPiece()
        return piece
