# SPDX-License-Identifier: Apache-2.0
"""The steady state of a turn: most text lies inside one region, holds nothing that could begin a delimiter, and goes to
one place. A token of it costs one search and, in an argument, one escape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vllm.parser.chat_format.scanning import CONTEXT, Stops
from vllm.parser.chat_format.turn_piece import ARGUMENTS, REASONING, TurnPiece


class SteadyTurn:
    """Base of the turn readers. A subclass reads any text in `_read`, says in `_steady` where plain text goes after it,
    and counts in `_skip` what it did not get to read."""

    def __init__(self) -> None:
        # Where the text that `plain` returns belongs: a part, and for arguments the index of the call.
        self.part = REASONING
        self.index = 0
        self._piece = TurnPiece()
        self._stops: Stops | None = None
        self._write: Callable[[str], str] | None = None
        self._carry = ""
        self._skipped = 0
        # The last pieces of what was skipped, for lookbehinds.
        self._last: deque[str] = deque(maxlen=CONTEXT)

    def _read(self, text: str) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _steady(self) -> Stops | None:
        """The search that tells plain text from other text from here on, after setting `part`, `index` and `_write`;
        None if all text must be read."""
        raise NotImplementedError

    def _skip(self, count: int, last: str) -> None:
        raise NotImplementedError

    def plain(self, text: str) -> str | None:
        """What plain text adds to `part`, as a string; None if `text` must be given to `read` instead."""
        stops = self._stops
        if stops is None:
            return None
        if carry := self._carry:
            text = carry + text
        if (match := stops(text)) is None:
            if carry:
                self._carry = ""
        elif match.lastindex == 1:
            start = match.start()
            self._carry, text = text[start:], text[:start]
        else:
            return None
        if not text:
            return ""
        self._skipped += len(text)
        self._last.append(text)
        write = self._write
        return text if write is None else write(text)

    def read(self, text: str) -> TurnPiece:
        """What any text adds to the turn."""
        self._settle(text)
        self._stops = self._steady()
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

    def finish(self) -> TurnPiece:
        """What the end of the turn adds."""
        self._settle("")
        self._stops = None
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
