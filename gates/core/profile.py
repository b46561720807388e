# SPDX-License-Identifier: Apache-2.0
"""How much a run does.

`node` is for a real node, `quick` for a first look, `tiny` and `tiny-muse` for the trained tiny models on the emulated
Gaudi, `stand-in` for the server that answers by rule.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gates.core.errors import GateError


@dataclass(frozen=True)
class Profile:
    """Sizes of a run, the same for every gate.

    Attributes:
        rungs: context lengths in tokens for the quality gates.
        depths: needle positions as a share of the context.
        samples: repeats of the statistical gates.
        greedy_tokens: length of greedy continuations.
        isolation_outputs: answers checked for foreign content.
        concurrency: requests under way at once.
        deadline_s: total seconds for one request.
        gate_deadline_s: total seconds for one gate.
        tokens_at_once: prompt tokens under way at once, as far as their number allows; None is no bound.
        isolation_rung: longest prompt of `isolation`; None is the longest there is.
        crowd_tokens: the same for `isolation` alone, which must have more under way than the KV cache holds.
        wording: name of the texts to send (gates/core/wording.py).
        answer_tokens: room for an answer, reasoning included.
        seed: base of all random choices.
    """

    name: str
    rungs: tuple[int, ...]
    depths: tuple[float, ...]
    samples: int
    greedy_tokens: int
    isolation_outputs: int
    concurrency: int
    deadline_s: float
    gate_deadline_s: float
    wording: str = "plain"
    answer_tokens: int = 2048
    tokens_at_once: int | None = None
    isolation_rung: int | None = None
    crowd_tokens: int | None = None
    seed: int = 1761


PROFILES = {
    "stand-in": Profile(
        name="stand-in",
        rungs=(96, 192, 384),
        depths=(0.1, 0.5, 0.9),
        samples=8,
        greedy_tokens=32,
        isolation_outputs=48,
        concurrency=4,
        deadline_s=60.0,
        gate_deadline_s=600.0,
        wording="toy",
        answer_tokens=96,
    ),
    "tiny": Profile(
        name="tiny",
        rungs=(96, 192, 384, 640),  # past the model's window of 64 and past pages of 128 tokens
        depths=(0.1, 0.5, 0.9),
        samples=12,
        greedy_tokens=48,
        isolation_outputs=48,
        concurrency=4,
        deadline_s=120.0,
        gate_deadline_s=900.0,
        wording="tiny",
        answer_tokens=160,
    ),
    "quick": Profile(
        name="quick",
        rungs=(2048, 8192, 32768),
        depths=(0.1, 0.5, 0.9),
        samples=20,
        greedy_tokens=128,
        isolation_outputs=96,
        concurrency=8,
        deadline_s=300.0,
        gate_deadline_s=1800.0,
    ),
    "node": Profile(
        name="node",
        rungs=(2048, 8192, 32768, 65536, 126000, 250000),
        depths=(0.1, 0.5, 0.9),
        samples=50,
        greedy_tokens=512,
        isolation_outputs=128,
        concurrency=16,
        # The arithmetic of these is in docs/gates.md, and held by gates/selftest/test_gate_load.py.
        deadline_s=3600.0,
        gate_deadline_s=6 * 3600.0,
        tokens_at_once=500_000,
        isolation_rung=126000,
        crowd_tokens=16 * 63000,
    ),
}


# The tiny Muse: as the tiny Beam, but for what it did not learn.
PROFILES["tiny-muse"] = dataclasses.replace(PROFILES["tiny"], name="tiny-muse", wording="tiny-muse")


def get(name: str) -> Profile:
    """A profile by name.

    Raises:
        GateError: no such profile.
    """
    if name not in PROFILES:
        raise GateError(f"no profile `{name}`", action=f"choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
