# SPDX-License-Identifier: Apache-2.0
"""One opener, closer or start anchor of a response template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex
from vllm.parser.chat_format import pattern_ends, patterns
from vllm.parser.chat_format.pattern_cost import may_explode

# A regex delimiter longer than this is not a delimiter: the bound keeps the cost of a stream linear when a pattern such
# as `to=.+?<...>` starts matching and never ends. Real headers are below 200 characters.
MAX_REGEX_DELIMITER = 512
# CPU time of one search. A regex that needs longer is one whose cost explodes; the server answers others meanwhile.
SEARCH_SECONDS = 1.0


class ResponseTemplateError(ValueError):
    """A response template that cannot be used. The message starts with the place inside the template."""

    def __init__(self, where: str, problem: str):
        super().__init__(f"{where}: {problem}")
        self.where = where


@dataclass(frozen=True)
class Delimiter:
    """A compiled delimiter.

    pattern: the regex that finds it (DOTALL; for literals an alternation, longest first).
    literals: its fixed strings in the order given, empty if the template spelled it as a regex.
    extends: True if one literal is a proper prefix of another, so that a match at the end of the input may still grow.
    source: the regex as the template spelled it, empty for literals.
    fixed_end: True if a complete match of a regex can never become a longer one.
    timed: True if a search may explode, and so is given SEARCH_SECONDS.
    """

    pattern: regex.Pattern
    literals: tuple[str, ...] = ()
    extends: bool = False
    source: str = ""
    fixed_end: bool = False
    timed: bool = False

    @property
    def is_literal(self) -> bool:
        return bool(self.literals)

    def strings(self) -> tuple[str, ...] | None:
        """The fixed strings this delimiter can be, also where a regex spells a finite choice of them; None
        otherwise."""
        return self.literals or patterns.literals(self.source)

    @cached_property
    def beginnings(self) -> frozenset[str] | None:
        """Strings one of which every match begins with, a lookahead included: all of it where the delimiter is a choice
        of fixed strings. None if not even the first character is certain."""
        if self.literals:
            return frozenset(self.literals)
        if found := patterns.expand(self.source):
            heads = frozenset(item.text + item.ahead for item in found)
            return heads if all(heads) and not any(item.at_start for item in found) else None
        return patterns.first_chars(self.source) or None

    @cached_property
    def endings(self) -> frozenset[str] | None:
        """Strings one of which every match ends with; None if not even the last character is certain."""
        return frozenset(self.literals) if self.literals else pattern_ends.endings(self.source)

    @cached_property
    def first_char(self) -> str | None:
        """The one character that every match starts with; None if there are several, or if none is certain."""
        chars = {beginning[0] for beginning in self.beginnings or ()}
        return chars.pop() if len(chars) == 1 else None

    def search(self, text: str, start: int, end: int | None = None, partial: bool = False) -> regex.Match | None:
        """The first match in text[start:end]. Raises TimeoutError for a regex that takes too long."""
        end = len(text) if end is None else end
        if self.timed:
            return self.pattern.search(text, start, end, partial=partial, timeout=SEARCH_SECONDS)
        return self.pattern.search(text, start, end, partial=partial)

    def may_grow(self, start: int, end: int, edge: int) -> bool:
        """Whether a complete match [start, end) in an input that so far ends at `edge` could change with more input."""
        if end != edge:
            return False
        return start == end or (not self.literals and not self.fixed_end) or self.extends

    def too_long(self, start: int, end: int) -> bool:
        return not self.literals and end - start > MAX_REGEX_DELIMITER


def literal_delimiter(strings: tuple[str, ...]) -> Delimiter:
    ordered = sorted(strings, key=len, reverse=True)
    extends = any(a != b and a.startswith(b) for a in strings for b in strings)
    return Delimiter(regex.compile("|".join(map(regex.escape, ordered)), regex.DOTALL), strings, extends)


def compile_pattern(where: str, source: Any) -> regex.Pattern:
    """Compile a regex of the template (DOTALL). Raises ResponseTemplateError naming `where`."""
    if not isinstance(source, str):
        raise ResponseTemplateError(where, f"must be a regular expression string, got {type(source).__name__}")
    if not source:
        raise ResponseTemplateError(where, "must not be empty")
    try:
        return regex.compile(source, regex.DOTALL)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ResponseTemplateError(where, f"is not a valid regular expression: {error}") from error


def compile_delimiter(where: str, spec: dict, literal_key: str, pattern_key: str) -> Delimiter | None:
    """Compile the delimiter that `spec` gives as `literal_key` (string or list) or `pattern_key` (regex); None if
    neither.

    Raises ResponseTemplateError naming the key at fault.
    """
    if literal_key in spec and pattern_key in spec:
        raise ResponseTemplateError(where, f"gives both '{literal_key}' and '{pattern_key}'; keep one")
    if pattern_key in spec:
        source = spec[pattern_key]
        return Delimiter(compile_pattern(f"{where}.{pattern_key}", source), source=source, timed=may_explode(source))
    if literal_key not in spec:
        return None
    place, value = f"{where}.{literal_key}", spec[literal_key]
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list):
        raise ResponseTemplateError(place, f"must be a string or a list of strings, got {type(value).__name__}")
    if not strings:
        raise ResponseTemplateError(place, "must list at least one string")
    for index, item in enumerate(strings):
        if not isinstance(item, str):
            raise ResponseTemplateError(f"{place}[{index}]", f"must be a string, got {type(item).__name__}")
        if not item:
            raise ResponseTemplateError(place, "must not be an empty string")
    return literal_delimiter(tuple(dict.fromkeys(strings)))
