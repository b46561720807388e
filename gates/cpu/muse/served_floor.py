# SPDX-License-Identifier: Apache-2.0
"""How far served text is from the CPU reference, beside the least that can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gates.cpu.beam.served import Answer
from gates.oracle.muse.model import MuseReference

# Times the floor, which the same run measures: served output rounds in the experts' kernel too.
FACTOR = 1.5
GAP_FACTOR = 2.0


@dataclass
class Distances:
    """Mean |dlogprob| over the best tokens, in nats; largest gap in logits of a token that is not the best.

    `published` is the distance of the published model's rounding, a looser measure.
    """

    served: float
    floor: float
    published: float
    worst_gap: float
    floor_gap: float

    def __str__(self) -> str:
        return (
            f"mean |dlogprob| {self.served:.4f} (floor {self.floor:.4f}, published rounding {self.published:.4f}); "
            f"largest gap {self.worst_gap:.3f} (floor {self.floor_gap:.3f})"
        )


def distances(folder: Path, answers: list[Answer], **slices: int) -> Distances:
    """Compare `answers` with the reference on their own text (slices: expert_slices)."""
    right = MuseReference(folder, "w4a16", **slices)
    others = (MuseReference(folder, "w4a16", wide_scores=False, **slices), MuseReference(folder, "bf16"))
    sums, gaps = [[], [], []], [0.0, 0.0]
    for answer in answers:
        ids = torch.tensor(answer.prompt + answer.ids)
        at = slice(len(answer.prompt) - 1, -1)
        logits = right(ids)[at]
        logprobs = logits.log_softmax(-1)
        narrow, published = (other(ids)[at] for other in others)
        for place, (token, top) in enumerate(zip(answer.ids, answer.top, strict=True)):
            sums[0] += [abs(value - float(logprobs[place, t])) for t, value in top.items()]
            for kept, other in zip(sums[1:], (narrow, published), strict=True):
                kept += [abs(float(other[place].log_softmax(-1)[t] - logprobs[place, t])) for t in top]
            best = logits[place].max()
            gaps[0] = max(gaps[0], float(best - logits[place, token]))
            gaps[1] = max(gaps[1], *(float(best - logits[place, int(o[place].argmax())]) for o in (narrow, published)))
    means = [sum(values) / len(values) for values in sums]
    return Distances(*means, *gaps)
