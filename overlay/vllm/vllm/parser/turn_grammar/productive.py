# SPDX-License-Identifier: Apache-2.0
"""Whether a client's grammar or schema can be written to its end at all.

xgrammar takes a grammar such as `root ::= root`, and only in the middle of a turn no token is left to choose. Its own
normal form has one rule a line, `name ::= (("text" other [a-z]*) | (third{2, 3}) | "")`, which is read here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_TERMINAL = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\][*+?]?')
_AHEAD = re.compile(r"\(=.*")
_MACRO = re.compile(r"[A-Z]\w*\(")  # `Regex("a+")`: it ends, and names no rule
_RULE = re.compile(r"([A-Za-z_][\w.-]*)(\{0,)?")


def dead_rules(grammar: Any) -> list[str]:
    """Names of the rules that can be reached and derive no finite text. Time is linear in the grammar's text.

    Args:
        grammar: an xgrammar `Grammar`.
    """
    rules = {name: _alternatives(body) for name, body in _lines(str(grammar))}
    alive = _alive(rules)
    reached, frontier = {"root"}, {"root"}
    while frontier:
        named = {name for rule in frontier for needed in rules.get(rule, ()) for name in needed}
        frontier = (named & rules.keys()) - reached
        reached |= frontier
    return [name for name in rules if name in reached and name not in alive]


def _alive(rules: Mapping[str, Sequence[set[str]]]) -> set[str]:
    """The rules that derive a finite text."""
    users: dict[str, list[tuple[str, int]]] = defaultdict(list)
    missing = {name: [len(needed) for needed in alternatives] for name, alternatives in rules.items()}
    for name, alternatives in rules.items():
        for index, needed in enumerate(alternatives):
            for other in needed:
                users[other].append((name, index))
    alive = {name for name, counts in missing.items() if 0 in counts}
    pending = list(alive)
    while pending:
        for name, index in users[pending.pop()]:
            missing[name][index] -= 1
            if not missing[name][index] and name not in alive:
                alive.add(name)
                pending.append(name)
    return alive


def _lines(text: str) -> list[tuple[str, str]]:
    pairs = (line.partition(" ::= ") for line in text.splitlines())
    return [(name, body) for name, arrow, body in pairs if arrow]


def _alternatives(body: str) -> list[set[str]]:
    """The rules that each alternative cannot do without."""
    if _MACRO.match(body):
        return [set()]
    plain = _AHEAD.sub("", _TERMINAL.sub(" ", body))
    return [{match[1] for match in _RULE.finditer(alternative) if not match[2]} for alternative in plain.split("|")]
