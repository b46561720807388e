# SPDX-License-Identifier: Apache-2.0
"""Finding delimiters in text that is still arriving.

`Window` keeps the part of a stream that may still matter; `find` says which delimiter is certain to come next and from
where on text must be held back. Both do work proportional to the new text, plus a bounded amount for each call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import regex
from vllm.parser.chat_format.delimiters import MAX_REGEX_DELIMITER, Delimiter

logger = logging.getLogger(__name__)

# Characters kept before the reading position, for lookbehinds and so that `^` matches only at the true start.
CONTEXT = 64
_TRIM_AT = 1024
_SPAN = 2 * MAX_REGEX_DELIMITER


class Watch(NamedTuple):
    """What plain text is told from: `search` finds the first place where a delimiter may begin. Text from there to its
    end that is one of `halves` is a delimiter that is certain to be incomplete."""

    search: Callable[[str], re.Match | None]
    halves: frozenset[str]


def halves_of(beginnings: Iterable[str]) -> frozenset[str]:
    """What may become one of `beginnings`, without holding one already."""
    found = {text[:size] for text in beginnings for size in range(1, len(text))}
    return frozenset(half for half in found if not half.startswith(tuple(beginnings)))


@lru_cache(maxsize=256)
def watch_for(beginnings: frozenset[str]) -> Watch:
    """A watch for delimiters that begin with one of `beginnings`, which must not be empty strings."""
    starts = {text[:2] for text in beginnings}
    single = {start for start in starts if len(start) == 1}
    pairs = sorted(start for start in starts if start[0] not in single)
    choices = [re.escape(start) for start in [*sorted(single), *pairs]]
    choices += [re.escape(char) + r"\Z" for char in sorted({pair[0] for pair in pairs})]
    return Watch(re.compile("|".join(choices) or r"(?!)").search, halves_of(beginnings))


class Wait(NamedTuple):
    """Where nothing can be sent before a delimiter is complete: `search` finds what one may end with, at most
    `overlap` characters of it in earlier text."""

    search: Callable[..., re.Match | None]
    overlap: int


@lru_cache(maxsize=256)
def wait_for(endings: frozenset[str]) -> Wait:
    """A wait for delimiters that end with one of `endings`."""
    search = re.compile("|".join(map(re.escape, sorted(endings))) or r"(?!)").search
    return Wait(search, max(map(len, endings), default=1) - 1)


class Window:
    """Unread text of a stream. text[pos:] is unread; text[0] is character `base` of the whole. `given_up`: the regexes
    that took too long on it, and are not searched for any more."""

    __slots__ = ("base", "given_up", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.base = 0
        self.given_up: set[str] = set()

    def append(self, piece: str) -> None:
        if self.pos > _TRIM_AT:
            cut = self.pos - CONTEXT
            self.text = self.text[cut:]
            self.base += cut
            self.pos = CONTEXT
        self.text += piece

    def skip(self, count: int, last: str) -> None:
        """Count `count` characters as read; only allowed when nothing is unread. `last`: the final ones, all of them or
        at least CONTEXT."""
        end = self.base + len(self.text) + count
        self.text = (self.text[-CONTEXT:] + last) if count == len(last) else last
        self.pos = len(self.text)
        self.base = end - self.pos

    @property
    def empty(self) -> bool:
        return self.pos == len(self.text)

    @property
    def offset(self) -> int:
        """Absolute position of the next unread character."""
        return self.base + self.pos


def find(delimiters: Sequence[Delimiter], window: Window, final: bool) -> tuple[int, regex.Match | None, int]:
    """The delimiter to act on now: (its index, its match, hold).

    The earliest match wins, then the longest, then the first in `delimiters`. The match is None if none is certain yet;
    then text before index `hold` of the window is free and the rest may be part of a delimiter. `final` says that no
    text follows.
    """
    text, edge = window.text, len(window.text)
    if window.pos == edge and not final:
        return -1, None, edge
    best: regex.Match | None = None
    best_index, hold = -1, edge
    for index, delimiter in enumerate(delimiters):
        first = delimiter.first_char
        if first is not None and text.find(first, window.pos) < 0:
            continue
        if delimiter.timed and delimiter.source in window.given_up:
            continue
        try:
            match = _search(delimiter, text, window.pos, final)
        except TimeoutError:
            window.given_up.add(delimiter.source)
            logger.error(
                "The delimiter %r takes too long on this output and is not looked for in it.", delimiter.source
            )
            continue
        if match is None:
            continue
        start, end = match.span()
        if not final and (match.partial or delimiter.may_grow(start, end, edge)):
            hold = min(hold, start)
        elif best is None or (start, -end) < (best.start(), -best.end()):
            best, best_index = match, index
    # A pending delimiter that starts no later might be the one that comes.
    if best is not None and best.start() >= hold:
        best = None
    return best_index, best, hold


def _search(delimiter: Delimiter, text: str, start: int, final: bool) -> regex.Match | None:
    edge = len(text)
    if delimiter.literals or edge - start <= MAX_REGEX_DELIMITER:
        return delimiter.search(text, start, edge, not final)
    # A regex is searched in spans, so that one which starts and never ends costs a span and not the rest of the text.
    # Inside a match that is too long another may begin, which is one.
    while True:
        limit = min(edge, start + _SPAN)
        match = delimiter.search(text, start, limit, not final or limit < edge)
        if match is None:
            if limit == edge:
                return None
            start = limit
            continue
        begin, end = match.span()
        if limit < edge and end == limit:
            start = begin if begin > start else start + MAX_REGEX_DELIMITER
        elif delimiter.too_long(begin, end):
            start = begin + 1
        else:
            return match
