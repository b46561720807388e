# SPDX-License-Identifier: Apache-2.0
"""What the counts of a decode step have in common for the models of this distribution."""

from __future__ import annotations

from typing import Any


def predicted_launches(layers: int) -> int:
    """Model part of a decode step: two segments and two all-reduces a layer, one each for the embedding, the tail."""
    segments = 2 * layers + 2
    collectives = 2 * layers + 1
    return segments + collectives


def counted_launches(steps: int, phase: dict[str, Any], kinds: tuple[str, ...]) -> tuple[float, float]:
    """(launches of the model, launches outside it) of a decode step; `kinds` are the model's all-reduces."""
    all_reduces = sum(phase["collectives"]["by"][f"all_reduce {kind}"] for kind in kinds)
    inside = phase["launches_in_graph"] + all_reduces
    outside = phase["launches"] - phase["launches_in_graph"] + phase["collectives"]["total"] - all_reduces
    return inside / steps, outside / steps


def check_two_a_layer(steps: int, by_layer: dict[str, Any], layers: int) -> None:
    """Two collectives and two launches in every layer."""
    assert len(by_layer) == layers
    for layer, counts in by_layer.items():
        assert counts["collectives"] == 2 * steps, layer
        assert counts["launches"] == 2 * steps, layer


def check_waits(steps: int, phase: dict[str, Any]) -> None:
    """The host waits for nothing but the sampled tokens."""
    assert phase["syncs"]["total"] == 0
    assert phase["d2h"]["blocking"] == 0
    assert phase["d2h"]["count"] == steps
    assert phase["d2h"]["largest"] <= 8 * 4, "token ids, not logits"


def check_cuts(summary: dict[str, Any], layers: int) -> None:
    """Prefill ends a graph after every layer, decode does not."""
    cuts = {
        kind: (summary["phases"][kind]["mark_steps"] - summary["phases"][kind]["collectives"]["total"])
        / summary["steps"][kind]
        for kind in ("prefill", "decode")
    }
    print(f"graph ends a step that no collective made: {cuts}")
    assert cuts["prefill"] - cuts["decode"] >= layers
    assert cuts["decode"] < layers
