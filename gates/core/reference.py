# SPDX-License-Identifier: Apache-2.0
"""Scores of the CPU reference on given passages, as a file: made once per checkpoint and passage, then cached.

Format (JSON): {"schema": 1, "checkpoint": digest, "mode": name of the reference, "passages": [{"name", "tokens": ids,
"logprobs": log probability of token i given the tokens before it, for i = 1.., "top": [{id: logprob}, ...] likewise}]}.
All logarithms are natural.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from gates.core.errors import GateError

SCHEMA = 1


@dataclass(frozen=True)
class Passage:
    """One scored passage. `logprobs[i]` and `top[i]` belong to `tokens[i + 1]`."""

    name: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[dict[int, float], ...]


@dataclass(frozen=True)
class Reference:
    checkpoint: str
    mode: str
    passages: tuple[Passage, ...]


def load(path: Path) -> Reference:
    """Read a score file.

    Raises:
        GateError: unreadable, another schema, no passages, two of one name, one without scores or candidates, or lists
            whose lengths do not agree.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GateError(
            f"cannot read reference scores ({error})", where=str(path), action="make them with gates.oracle.passages"
        ) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise GateError(
            "not reference scores of schema 1", where=str(path), action="make them with gates.oracle.passages"
        )
    passages: list[Passage] = []
    try:
        for entry in data["passages"]:
            top = tuple({int(k): float(v) for k, v in row.items()} for row in entry["top"])
            passage = Passage(entry["name"], tuple(entry["tokens"]), tuple(entry["logprobs"]), top)
            if not len(passage.tokens) - 1 == len(passage.logprobs) == len(passage.top):
                raise GateError("list lengths do not agree", where=f"{path} passage {passage.name}")
            if not passage.top or not all(passage.top):
                raise GateError(
                    "a position without candidates, or none at all",
                    where=f"{path} passage {passage.name}",
                    action="make them anew",
                )
            if any(passage.name == other.name for other in passages):
                raise GateError("two passages of one name", where=f"{path} passage {passage.name}", action="rename one")
            if not all(map(math.isfinite, (*passage.logprobs, *(v for row in top for v in row.values())))):
                raise GateError("a score is no number", where=f"{path} passage {passage.name}", action="make them anew")
            passages.append(passage)
        if not passages:
            raise GateError("no passages", where=str(path), action="make them with gates.oracle.passages")
        return Reference(str(data["checkpoint"]), str(data["mode"]), tuple(passages))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GateError(f"malformed reference scores ({error!r})", where=str(path)) from error
