# SPDX-License-Identifier: Apache-2.0
"""Tag text per set of rules: agents send the same tools with every turn."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import replace

from vllm.logger import init_logger
from vllm.parser.turn_grammar.arguments import least_bytes
from vllm.parser.turn_grammar.limits import MAX_REPEATS, STRICT_TAG_BYTES
from vllm.parser.turn_grammar.repeats import compile_cost
from vllm.parser.turn_grammar.turn import TurnRules, turn_tag
from vllm.parser.turn_grammar.wire_format import TurnFormat

logger = init_logger(__name__)

CACHE_BYTES = 16 << 20


class TagCache:
    """Least recently used tag texts, bounded by their bytes. Safe to share by threads."""

    def __init__(self, limit: int = CACHE_BYTES):
        self.limit = limit
        self.bytes = 0
        self.hits = self.misses = 0
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, turn: TurnFormat, rules: TurnRules) -> str:
        key = repr((turn, rules))
        with self._lock:
            if (text := self._texts.get(key)) is not None:
                self._texts.move_to_end(key)
                self.hits += 1
                return text
            self.misses += 1
        text = bounded_text(turn, rules)
        with self._lock:
            if key not in self._texts:
                self._texts[key] = text
                self.bytes += len(key) + len(text)
            while self.bytes > self.limit and len(self._texts) > 1:
                old_key, old = self._texts.popitem(last=False)
                self.bytes -= len(old_key) + len(old)
        return text


def bounded_text(turn: TurnFormat, rules: TurnRules) -> str:
    """Tag text of `rules`, with the schemas of the last tools given up beyond the bound."""
    # First by what they take at least, so that no text far beyond the bound is ever built.
    free = _beyond(STRICT_TAG_BYTES, {tool.name: least_bytes(tool.parameters, tool.strict) for tool in rules.tools})
    strict_first = sorted(rules.tools, key=lambda tool: not tool.strict)
    free |= _beyond(MAX_REPEATS**2, {tool.name: compile_cost(tool.parameters) for tool in strict_first})
    text = json.dumps(turn_tag(turn, replace(rules, free=free)))
    if len(text) > STRICT_TAG_BYTES and rules.tools:
        sizes = {}
        for tool in rules.tools:
            alone = replace(rules, tools=(tool,), other_tools=False, answer=False, parallel=False, free=free)
            sizes[tool.name] = len(json.dumps(turn_tag(turn, alone)))
        free |= _beyond(STRICT_TAG_BYTES // (2 if rules.parallel else 1), sizes)
        text = json.dumps(turn_tag(turn, replace(rules, free=free)))
    if free:
        logger.warning(
            "The schemas of %d of %d tools are not enforced: a grammar of at most %d bytes is built, whose patterns "
            "repeat at most %d times.",
            len(free),
            len(rules.tools),
            STRICT_TAG_BYTES,
            MAX_REPEATS,
        )
    return text


def _beyond(room: int, sizes: dict[str, int]) -> frozenset[str]:
    """The names behind the first ones that fit into `room` together."""
    free = set()
    for name, size in sizes.items():
        room -= size
        if room < 0:
            free.add(name)
    return frozenset(free)


_CACHE = TagCache()


def tag_text(turn: TurnFormat, rules: TurnRules) -> str:
    return _CACHE.get(turn, rules)
