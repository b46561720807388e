# SPDX-License-Identifier: Apache-2.0
"""The tag pattern of `xml-inline` content, cut so that values can be read while they are written.

A tag pattern is one regex with the groups `key` and `value`. Where the value is a lazy "anything" at the top level of
the pattern, the text before the value (`head`) and the text after it (`tail`) are patterns of their own: searching for
them in turn finds the same pairs as searching for the whole, in time linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import regex
from vllm.parser.chat_format.delimiters import MAX_REGEX_DELIMITER, SEARCH_SECONDS, Delimiter
from vllm.parser.chat_format.pattern_cost import may_explode
from vllm.parser.chat_format.pattern_ends import ends_once
from vllm.parser.chat_format.patterns import expand, split_group

_LAZY_ANYTHING = (".*?", r"[\s\S]*?", r"[\S\s]*?", r"(?s:.*?)")
# References and inline flags tie the two halves together.
_TIED = regex.compile(r"\\[1-9]|\\g<|\(\?P[=>]|\(\?\(|\(\?[a-zA-Z0-9&+-]+[):](?<!\(\?:)|\(\?R\)")


@dataclass(frozen=True)
class TagPattern:
    """A compiled tag pattern. head and tail are None if the pattern cannot be cut at its value.

    key_head, key, middle, tail_source: source text before the key, of the key, between key and value, and after the
    value; empty when the pattern cannot be cut.
    """

    whole: regex.Pattern
    head: Delimiter | None = None
    tail: Delimiter | None = None
    key_head: str = ""
    key: str = ""
    middle: str = ""
    tail_source: str = ""

    @staticmethod
    @lru_cache(maxsize=64)
    def of(source: str) -> TagPattern:
        whole = regex.compile(source, regex.DOTALL)
        by_value = split_group(source, "value")
        if by_value is None or by_value[1] not in _LAZY_ANYTHING or _TIED.search(source.replace(by_value[1], "", 1)):
            return TagPattern(whole)
        head, _, tail = by_value
        by_key = split_group(head, "key")
        if by_key is None or not tail:
            return TagPattern(whole)
        head_pattern, tail_pattern = regex.compile(head, regex.DOTALL), regex.compile(tail, regex.DOTALL)
        if head_pattern.fullmatch(""):
            return TagPattern(whole)
        ends = expand(tail)
        fixed = ends is not None and not any(
            a is not b and a.text.startswith(b.text + b.ahead) for a in ends for b in ends
        )
        tail_delimiter = Delimiter(tail_pattern, source=tail, fixed_end=fixed, timed=may_explode(tail))
        head_delimiter = Delimiter(head_pattern, source=head, fixed_end=ends_once(head), timed=may_explode(head))
        return TagPattern(whole, head_delimiter, tail_delimiter, *by_key, tail)

    def pairs(self, text: str) -> Iterator[tuple[str, str]]:
        """The (key, value) texts in `text`, in order; an unfinished last value is left out. Raises ValueError when the
        pattern takes unreasonably long."""
        try:
            yield from self._pairs(text)
        except TimeoutError as error:
            raise ValueError("xml-inline: the tag pattern takes too long on this text") from error

    def _pairs(self, text: str) -> Iterator[tuple[str, str]]:
        if self.head is None or self.tail is None:
            for match in self.whole.finditer(text, timeout=SEARCH_SECONDS):
                if match.group("key") is None:
                    raise ValueError("xml-inline: the tag pattern matched without a key")
                yield match.group("key"), match.group("value") or ""
            return
        position = 0
        while (head := _bounded_search(self.head, text, position)) is not None:
            tail = _bounded_search(self.tail, text, head.end())
            if tail is None:
                return
            yield head.group("key"), text[head.end() : tail.start()]
            position = tail.end()


def _bounded_search(delimiter: Delimiter, text: str, position: int) -> regex.Match | None:
    while (match := delimiter.search(text, position)) is not None:
        if not delimiter.too_long(match.start(), match.end()):
            return match
        position = match.start() + MAX_REGEX_DELIMITER
    return None
