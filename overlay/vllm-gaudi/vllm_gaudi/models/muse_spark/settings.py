# SPDX-License-Identifier: Apache-2.0
"""Environment settings of Muse Spark, read once when the model is built.

| variable | default | meaning |
|---|---|---|
| `VLLM_MUSE_EXPERT_GROUPS` | 2 if the ranks are even, else 1 | expert groups; ranks of a group share its experts |
| `VLLM_MUSE_EXPERT_OP` | stock | `stock` is the device's fused kernel, `torch` plain operators on the touched experts |
| `VLLM_MUSE_MOE_CHUNK_MIB` | 128 | most MiB of fp32 expert rows that are reduced at once |
"""

import os
from dataclasses import dataclass

OPERATORS = ("stock", "torch")


def _whole(name: str, default: int, low: int, high: int) -> int:
    text = os.environ.get(name, str(default)).strip()
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name}={text!r}: must be a whole number from {low} to {high}")
    return int(text)


@dataclass(frozen=True)
class MuseSettings:
    """Parsed settings. Raises ValueError naming the variable when a value is out of range."""

    expert_groups: int
    expert_op: str
    chunk_bytes: int

    @classmethod
    def from_environment(cls, world: int) -> "MuseSettings":
        """Read the environment for `world` tensor-parallel ranks."""
        operator = os.environ.get("VLLM_MUSE_EXPERT_OP", OPERATORS[0])
        if operator not in OPERATORS:
            raise ValueError(f"VLLM_MUSE_EXPERT_OP={operator!r}: must be one of {', '.join(OPERATORS)}")
        return cls(
            expert_groups=_whole("VLLM_MUSE_EXPERT_GROUPS", 1 if world % 2 else 2, 1, world),
            expert_op=operator,
            chunk_bytes=_whole("VLLM_MUSE_MOE_CHUNK_MIB", 128, 1, 65536) << 20,
        )
