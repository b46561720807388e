# SPDX-License-Identifier: Apache-2.0
"""A client's stop strings, looked for in the answer alone.

Where a parser reads a turn, the output also holds thinking, calls and the format's own markers. The client sees none of
the markers, and means its answer: `assistant` or a line end must not stop a turn in a header, a model that always
thinks must get to its answer, and half a call is of no use to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

# What opens an answer, and what closes it.
Region = tuple[str, tuple[str, ...]]


class AnswerStops(list[str]):
    """Stop strings of one request, with the regions of its turn in which they count.

    regions: the literals that open a region, each with those that close it. written: what the prompt already holds of
    the turn, behind its start anchor.
    """

    def __init__(self, stops: Iterable[str], regions: Sequence[Region], written: str = ""):
        super().__init__(stops)
        self.regions = regions
        self.written = written


class AnswerScan:
    """Finds stop strings in the answers of one growing output. Cost is linear in the output.

    Until the first region is open, places count from the start of what the prompt wrote of the turn.
    """

    def __init__(self, stops: AnswerStops):
        self._stops = stops
        self._openers = [opener for opener, _ in stops.regions]
        self._closers: tuple[str, ...] | None = None  # of the open region
        self._since = 0  # where the open region begins
        self._read = 0  # up to here there is no further opener or closer
        self._searched = len(stops.written)  # up to here no stop string ends
        self._follow(stops.written)
        self._written = stops.written
        self._forget_prompt()

    def find(self, output: str, offset: int = 0) -> tuple[str, int] | None:
        """(stop string, where it begins) of the first one that ends in `output` behind index `offset`; None if none
        does yet. `output` begins with that of the last call."""
        shift = len(self._written)
        self._searched = max(self._searched, offset + shift)
        found = self._follow(self._written + output if shift else output)
        self._forget_prompt()
        return (found[0], found[1] - shift) if found else None

    def _forget_prompt(self) -> None:
        """What the prompt wrote matters only until the first region is open."""
        if self._closers is not None and (shift := len(self._written)):
            self._since, self._read, self._searched = (
                max(0, place - shift) for place in (self._since, self._read, self._searched)
            )
            self._written = ""

    def _follow(self, text: str) -> tuple[str, int] | None:
        while True:
            if self._closers is None:
                opened = _first(text, self._openers, self._read)
                if opened is None:
                    self._read = max(self._read, len(text) - _half(text, self._openers))
                    return None
                opener, start = opened
                self._closers = self._stops.regions[self._openers.index(opener)][1]
                self._since = self._read = start + len(opener)
            closed = _first(text, self._closers, self._read)
            limit = closed[1] if closed else len(text) - _begun(text, self._closers)
            if (found := self._stop(text, limit)) is not None:
                return found
            self._searched = max(self._searched, limit)
            if closed is None:
                self._read = max(self._read, len(text) - _half(text, self._closers))
                return None
            self._closers = None
            self._read = limit + len(closed[0])

    def _stop(self, text: str, limit: int) -> tuple[str, int] | None:
        places = []
        for order, stop in enumerate(self._stops):
            begin = max(self._since, self._searched - len(stop) + 1)
            if (at := text.find(stop, begin, max(begin, limit))) >= 0:
                places.append((at, order))
        if not places:
            return None
        at, order = min(places)
        return self._stops[order], at


def _first(text: str, literals: Sequence[str], start: int) -> tuple[str, int] | None:
    """(literal, index) of the earliest of `literals` in `text` from `start` on, the longest if two begin there."""
    found = [(at, -len(literal), literal) for literal in literals if (at := text.find(literal, start)) >= 0]
    if not found:
        return None
    at, _, literal = min(found)
    return literal, at


def _half(text: str, literals: Sequence[str]) -> int:
    """How many characters at the end of `text` may still become one of `literals`."""
    tail = text[1 - max(map(len, literals)) :]
    starts = (at for at in range(len(tail)) if any(literal.startswith(tail[at:]) for literal in literals))
    return len(tail) - next(starts, len(tail))


def _begun(text: str, closers: Sequence[str]) -> int:
    """How many characters at the end of `text` are a closer of which its first marker is written and some is missing.

    Markers come whole, as tokens of their own; the word behind one may come in pieces, and is no more of the answer
    than they are. Half a marker is text, for which a stream cannot wait: it may have been sent already.
    """
    size = _half(text, closers)
    return size if ">" in text[len(text) - size :] else 0


# What the hooks in the detokenizer call.


def scan_for(stops: Any) -> AnswerScan | None:
    """The scan that a request's stop strings need; None where they count in the whole output."""
    return AnswerScan(stops) if isinstance(stops, AnswerStops) and stops and stops.regions else None


def stop_in_answer(detokenizer: Any, scan: AnswerScan, offset: int) -> str | None:
    """The stop string that the output completes, after cutting the output there; None if there is none yet.

    offset: where the text of the tokens begins that may complete one.
    """
    found = scan.find(detokenizer.output_text, offset if detokenizer.min_tokens else 0)
    if found is None or detokenizer.num_output_tokens() <= detokenizer.min_tokens:
        return None
    stop, at = found
    keep = at + len(stop) if detokenizer.include_stop_str_in_output else at
    detokenizer.output_text = detokenizer.output_text[:keep]
    return stop
