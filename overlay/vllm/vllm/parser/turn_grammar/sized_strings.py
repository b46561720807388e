# SPDX-License-Identifier: Apache-2.0
"""JSON strings of bounded length, with escapes.

What xgrammar 0.2.9 makes of `minLength` and `maxLength` admits raw control characters, which is not JSON, and no
escape: no quotation mark, no line break. Its grammar of the schema is taken as text here, and the rules of these
strings are written anew. How they are written decides what a mask costs. A count over rules that hold an escape takes
0.1 to 1 s a token with a vocabulary of 150,000; a rule a character takes 0.1 ms, and 20 to 40 ms to compile. So
characters are counted by rules where they are few, and by blocks of plain characters where they are many.
"""

from __future__ import annotations

import json
import re
from typing import Any

from vllm.parser.turn_grammar import formats as f

# Longest bound that is counted character by character, each of them plain or an escape.
EXACT = 40
# Characters of a block. An escape counts as what is left of its block, so no text is longer than its bound.
BLOCK = 32
_LAST = 8  # at least so many characters behind the blocks are counted one by one
# Behind its first escape a text has at most so many blocks.
MAX_BLOCKS = 256
# First characters of a text with a least length that may be escapes.
LEAD = 16
# Rules by the character in one grammar; strings beyond them are held to plain characters.
MAX_RULES = 384

_PLAIN = r"[^\"\\\0-\x1f]"
_HEX = "[0-9a-fA-F]"
# A pair of surrogates is one character; half of one is none.
_ESCAPE = (
    r'"\\" ([\"\\/bfnrt] | "u" ([0-9a-cefA-CEF] HEX | [dD] [0-7]) HEX HEX'
    r' | "u" [dD] [89abAB] HEX HEX "\\u" [dD] [c-fC-F] HEX HEX)'
).replace("HEX", _HEX)
# The library writes U+00E9 as `\xe9`, and reads any hexadecimal digits behind it as part of it.
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
# As the library writes them, and the rule of one character.
_COUNTED = re.compile(r'\("\\"" \w+_characters\{(\d+), (-?\d+)\} "\\""\)')
_CHARACTER = re.compile(r"^(\w+_characters) ::= \(\(\[\^\\\"\\\\\\r\\n\]\)\)$", re.MULTILINE)


def sized_json(schema: Any) -> f.Format:
    """Format of a JSON text under `schema`, one that the library takes, with the lengths of its strings."""
    import xgrammar as xgr

    text = str(xgr.Grammar.from_json_schema(json.dumps(schema), max_whitespace_cnt=f.MAX_WHITESPACE))
    return f.accepted({"type": "grammar", "grammar": with_escapes(text)})


def with_escapes(grammar: str) -> str:
    """The library's grammar of a schema with its bounded strings written anew."""
    rules = _Rules()
    grammar = _ESCAPED.sub(lambda match: rf"\u00{match[1]}" if match[1] else match[0], grammar)
    grammar = _COUNTED.sub(lambda match: f"({rules.string(int(match[1]), int(match[2]))})", grammar)
    return "\n".join([_CHARACTER.sub(r"\1 ::= (sized_plain)", grammar), *rules.lines()])


class _Rules:
    """The rules that bounded strings share."""

    def __init__(self) -> None:
        self._bodies = {"sized_plain": _PLAIN, "sized_escape": _ESCAPE}
        self._single = 0  # rules by the character

    def lines(self) -> list[str]:
        return [f"{name} ::= ({body})" for name, body in self._bodies.items()]

    def string(self, low: int, high: int) -> str:
        """Right side for a string of `low` to `high` characters; no upper bound if `high` is negative."""
        few = min(low, LEAD)
        if self._single + few + (0 if high < 0 else EXACT) > MAX_RULES:
            return rf'"\"" sized_plain{{{low},{"" if high < 0 else high}}} "\""'
        # Behind its quotation mark the library's own rule of a string goes on, with its end.
        rest = "basic_string_sub" if high < 0 else self._most(high - low)
        for count in range(1, few + 1):
            rest = self._character(f"{rest.split('_from_')[0]}_from_{count}", rest)
        return rf'"\"" {f"sized_plain{{{low - few}}} " if low > few else ""}{rest}'

    def _character(self, name: str, rest: str, ends: str = "") -> str:
        if name not in self._bodies:
            self._single += 1
            self._bodies[name] = f"{ends}{_PLAIN} {rest} | sized_escape {rest}"
        return name

    def _most(self, high: int) -> str:
        """Name of the rule of at most `high` characters and the closing mark."""
        if high <= EXACT:
            return self._exactly_most(high)
        blocks = (high - _LAST) // BLOCK
        rest = self._exactly_most(high - blocks * BLOCK)
        for count in range(1, min(blocks, MAX_BLOCKS) + 1):
            name = f"{rest.split('_block_')[0]}_block_{count}"
            self._bodies[name] = (
                rf'sized_plain{{0,{BLOCK}}} "\"" | sized_plain{{0,{BLOCK - 1}}} sized_escape {rest}'
                f" | sized_plain{{{BLOCK}}} {rest}"
            )
            rest = name
        self._bodies[f"sized_{high}"] = rf'sized_plain{{0,{high}}} "\"" | {rest}'
        return f"sized_{high}"

    def _exactly_most(self, high: int) -> str:
        name = "sized_0"
        self._bodies[name] = r'"\""'
        for count in range(1, high + 1):
            name = self._character(f"sized_{count}", name, r'"\"" | ')
        return name
