# SPDX-License-Identifier: Apache-2.0
"""Bounds on what a request may ask a grammar to hold, checked before any of it is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.exceptions import VLLMValidationError

MAX_DEPTH = 96
MAX_NODES = 20_000
# Compile time grows with the square of both: about 1 s at these bounds.
MAX_VALUES = 4096
MAX_PROPERTIES = 512
MAX_REGEX_BYTES = 16 << 10
# Of a JSON schema without its annotations.
MAX_SCHEMA_BYTES = 1 << 20
# Compile time grows with the square of what a pattern inside JSON repeats: 0.3 s at this bound, 35 s at 16,000. The
# squares of several patterns add up.
MAX_REPEATS = 2000
# Compile time grows with the square of a single text's length, too: 0.2 s at 25 KB, 8 s at 200 KB.
MAX_TEXT = 16 << 10
MAX_TEXTS = 128 << 10
MAX_GRAMMAR_BYTES = 256 << 10
MAX_TOOLS = 1024
# The regex of unlisted names nests as deep, and its automaton grows with the square.
MAX_NAME = 256
MAX_TOOLS_BYTES = 4 << 20
# xgrammar's counter of tokens.
MAX_BUDGET = 2**31 - 1
# Above this much tag text the remaining tools keep their names but not their schemas:
# compile time grows with the text, about 0.1 s for each 10 KB on a 150,000-token vocabulary.
STRICT_TAG_BYTES = 512 << 10


def check_schema(schema: Any, *, parameter: str, owner: str = "the JSON schema") -> int:
    """Number of nodes of `schema`.

    Raises:
        VLLMValidationError: too deep, too many nodes, an enumeration or an object too wide, or
            text that is not Unicode (an unpaired surrogate).
    """
    count, frontier, depth = 0, [schema], 0
    while frontier:
        depth += 1
        if depth > MAX_DEPTH:
            _refuse(f"{owner} nests deeper than {MAX_DEPTH} levels; flatten it or use $defs references", parameter)
        below: list[Any] = []
        for node in frontier:
            count += 1
            if isinstance(node, Mapping):
                _check_width(node, owner, parameter)
                for key in node:
                    check_text(key, f"a key of {owner}", parameter)
                below.extend(node.values())
            elif isinstance(node, (list, tuple)):
                below.extend(node)
            elif isinstance(node, str):
                check_text(node, f"a string of {owner}", parameter)
        if count + len(below) > MAX_NODES:
            _refuse(f"{owner} has more than {MAX_NODES} nodes; send a smaller schema", parameter)
        frontier = below
    return count


def _check_width(node: Mapping[str, Any], owner: str, parameter: str) -> None:
    for key, limit in (("enum", MAX_VALUES), ("properties", MAX_PROPERTIES)):
        members = node.get(key)
        if isinstance(members, (list, Mapping)) and len(members) > limit:
            _refuse(f"{key} of {owner} has {len(members)} entries, at most {limit} are served; send fewer", parameter)
    for key in ("enum", "const", "pattern", "properties"):
        _check_texts(node.get(key), f"{key} of {owner}", parameter)


def _check_texts(value: Any, owner: str, parameter: str) -> None:
    """Bound the texts that a grammar spells out: enumerated values, a constant, a pattern, names of properties."""
    members = [value] if isinstance(value, str) else value if isinstance(value, (list, Mapping)) else ()
    lengths = [len(text) for text in members if isinstance(text, str)]
    if lengths and max(lengths) > MAX_TEXT:
        _refuse(
            f"{owner} holds a text of {max(lengths)} characters, at most {MAX_TEXT} are served; shorten it", parameter
        )
    if sum(lengths) > MAX_TEXTS:
        _refuse(
            f"{owner} holds {sum(lengths)} characters of text, at most {MAX_TEXTS} are served; send fewer",
            parameter,
        )


def check_size(value: Any, limit: int, *, parameter: str, owner: str) -> int:
    """Bytes of `value` as JSON; raises VLLMValidationError above `limit`."""
    size = len(json.dumps(value, ensure_ascii=True))
    if size > limit:
        _refuse(
            f"{owner} takes {size} bytes as JSON, at most {limit} are served; send fewer or smaller ones", parameter
        )
    return size


def check_text(value: Any, owner: str, parameter: str) -> None:
    """Refuse text with unpaired surrogates: no tokenizer can spell it."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            _refuse(f"{owner} holds an unpaired surrogate at character {error.start}; send valid Unicode", parameter)


def check_tools(tools: Sequence[tuple[str, Any]]) -> None:
    """Bounds over the tools of a request, given as (name, parameters)."""
    if len(tools) > MAX_TOOLS:
        _refuse(f"{len(tools)} tools, at most {MAX_TOOLS} are served; send fewer", "tools")
    total = 0
    for name, parameters in tools:
        check_text(name, "a tool's name", "tools")
        if len(name) > MAX_NAME:
            _refuse(
                f"tool name {name[:64]!r}... has {len(name)} characters, at most {MAX_NAME} are served; shorten it",
                "tools",
            )
        total += check_schema(parameters, parameter="tools", owner=f"tool {name[:64]!r}")
        if total > MAX_NODES:
            _refuse(
                f"the tools' schemas have more than {MAX_NODES} nodes together; send fewer tools or smaller schemas",
                "tools",
            )
    check_size([parameters for _, parameters in tools], MAX_TOOLS_BYTES, parameter="tools", owner="the list of tools")


def check_budget(budget: int | None) -> None:
    """Refuse a thinking budget that the grammar cannot count to."""
    if budget is not None and budget > MAX_BUDGET:
        _refuse(f"thinking_token_budget is at most {MAX_BUDGET}; send -1 for no bound", "thinking_token_budget")


def _refuse(message: str, parameter: str) -> None:
    raise VLLMValidationError(message, parameter=parameter)
