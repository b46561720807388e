# SPDX-License-Identifier: Apache-2.0
"""Environment settings of the Beam model, read once when the model is built.

| variable | default | meaning |
|---|---|---|
| `VLLM_BEAM_EXACT` | 0 | 1 keeps every BF16 rounding point of the published model by integer arithmetic |
| `VLLM_BEAM_EXPERT_SLICES` | 1 | with expert parallelism: quantise an expert's intermediate in n slices, as TP would |
"""

import os
from dataclasses import dataclass
from difflib import get_close_matches


def _whole(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.strip().isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name}={text!r}: must be a whole number from {low} to {high}")
    return int(text)


@dataclass(frozen=True)
class BeamSettings:
    """Parsed settings. Raises ValueError naming the variable when a value is out of range or a name is none."""

    exact: bool
    expert_slices: int

    @classmethod
    def from_environment(cls) -> "BeamSettings":
        """Read the environment."""
        known = ("VLLM_BEAM_EXACT", "VLLM_BEAM_EXPERT_SLICES")
        for name in sorted(os.environ.keys() - known):
            if name.upper().startswith("VLLM_") and (meant := get_close_matches(name.upper(), known, 1, 0.85)):
                raise ValueError(f"{name} is not a setting: did you mean {meant[0]}?")
        return cls(
            exact=bool(_whole("VLLM_BEAM_EXACT", 0, 0, 1)),
            expert_slices=_whole("VLLM_BEAM_EXPERT_SLICES", 1, 1, 64),
        )
