# SPDX-License-Identifier: Apache-2.0
"""A rule-based next-token model over bytes: what the stand-in server answers with.

It can do what the `toy` wording asks (look a fact up, copy a line), is deterministic, and gives every text a definite
log probability, so every gate has something to measure in milliseconds. It is a test double, never a reference.
"""

from __future__ import annotations

import json
import math
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCAB = 256
LISTED = 24
CERTAIN = 0.9


@dataclass(frozen=True)
class ToyModel:
    """Next-byte distribution of a text: rules first, else a hash of the last four bytes."""

    def rule(self, text: bytes) -> int | None:
        """The byte that a rule demands next, if one applies."""
        asked = re.search(rb"\?([A-Z]{2})=(\d*)$", text)
        if asked:
            found = re.findall(rb"(?<!\?)" + asked[1] + rb"=(\d+);", text)
            if found and found[-1].startswith(asked[2]):
                rest = found[-1][len(asked[2]) :]
                return rest[0] if rest else ord(".")
        copying = re.search(rb"<([^<>]*)>[^<>]*<([^<>]*)$", text)
        if copying and copying[1].startswith(copying[2]):
            rest = copying[1][len(copying[2]) :]
            return rest[0] if rest else ord(">")
        return None

    def distribution(self, text: bytes) -> dict[int, float]:
        """Log probabilities (nats) of the `LISTED` likeliest next bytes."""
        seed = zlib.crc32(text[-4:])
        ids = [97 + (seed >> (i % 16)) % 26 if i < 8 else (seed * (i + 7) >> 5) % VOCAB for i in range(4 * LISTED)]
        unique = list(dict.fromkeys(ids))[:LISTED]
        step = 0.2 + (seed >> 8) % 100 / 200  # how sure it is differs from place to place
        weights = [math.exp(-step * i) for i in range(len(unique))]
        must = self.rule(text)
        if must is not None:
            unique = [must, *(u for u in unique if u != must)][:LISTED]
            weights = [CERTAIN * 10] + [1.0 / len(unique)] * (len(unique) - 1)
        total = math.fsum(weights) / 0.98  # 2 % of the mass is spread over everything unlisted
        return {token: math.log(weight / total) for token, weight in zip(unique, weights, strict=True)}

    def logprob(self, text: bytes, token: int) -> float:
        """Log probability of one byte; unlisted ones share the rest."""
        return self.distribution(text).get(token, math.log(0.02 / VOCAB))

    def greedy(self, text: bytes) -> int:
        table = self.distribution(text)
        return max(table, key=table.__getitem__)

    def sample(self, text: bytes, seed: int, position: int, filters: dict[str, Any] | None = None) -> int:
        """A seeded draw from the listed bytes that `top_k`, `top_p` and `min_p` leave."""
        table = _filtered(self.distribution(text), filters or {})
        mass = math.fsum(map(math.exp, table.values()))
        point = (zlib.crc32(f"{seed}:{position}".encode()) % 10**6) / 10**6
        for token, value in table.items():
            point -= math.exp(value) / mass
            if point <= 0:
                return token
        return next(iter(table))


def _filtered(table: dict[int, float], filters: dict[str, Any]) -> dict[int, float]:
    ordered = sorted(table, key=lambda token: -table[token])
    least = table[ordered[0]] + math.log(filters.get("min_p") or 1e-9)
    kept, mass = {}, 0.0
    for token in ordered[: int(filters.get("top_k") or 0) or None]:
        if kept and (table[token] < least or mass >= float(filters.get("top_p") or 1.0)):
            break
        kept[token] = table[token]
        mass += math.exp(table[token])
    return kept


def reference(folder: Path) -> Path:
    """A file of reference scores (gates/core/reference.py) straight from the formula, not from the server."""
    model, rng, passages = ToyModel(), random.Random(3), []
    for number in range(3):
        text = bytes(rng.randrange(97, 123) for _ in range(40))
        logprobs = [model.logprob(text[:i], text[i]) for i in range(1, len(text))]
        top = [dict(list(model.distribution(text[:i]).items())[:20]) for i in range(1, len(text))]
        passages.append({"name": f"p{number}", "tokens": list(text), "logprobs": logprobs, "top": top})
    path = folder / "scores.json"
    path.write_text(json.dumps({"schema": 1, "checkpoint": "toy", "mode": "exact", "passages": passages}))
    return path


def instance(schema: dict) -> object:  # type: ignore[type-arg]
    """The smallest value a JSON schema allows, for the schemas the gates send."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {
            k: instance(v) for k, v in (schema.get("properties") or {}).items() if k in (schema.get("required") or [])
        }
    if kind == "array":
        return [instance(schema["items"]) for _ in range(schema.get("minItems", 0))]
    return {"integer": schema.get("minimum", 0), "number": 0.5, "boolean": False, "null": None}.get(
        str(kind), "text " * 6
    )
