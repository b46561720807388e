# SPDX-License-Identifier: Apache-2.0
"""Weights of one Beam layer as callables, for each mode and every layout on disk.

Experts may be stored one tensor each (`experts.7.gate_proj.weight`) or packed
(`experts.gate_up_proj` [E, 2I, H] with the gate rows first, `experts.down_proj`
[E, H, I]); any matrix may be BF16 or E4M3 with a `weight_scale`. Each matrix
decides for itself, and only the experts that are hit are read.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gates.oracle import fp8
from gates.oracle.checkpoint import Checkpoint

MODES = {"fp32": torch.float32, "bf16": torch.bfloat16, "w8a8": torch.bfloat16}


@dataclass(frozen=True)
class Matrix:
    """One projection. `scale` is set only for a matrix that runs in W8A8."""

    weight: torch.Tensor
    scale: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        if self.scale is None:
            return F.linear(x, self.weight)
        return fp8.w8a8_linear(x, self.weight, self.scale, out_dtype)


class LayerWeights:
    """Reads tensors of `checkpoint` under `prefix`, as `mode` wants them."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, mode: str) -> None:
        self.checkpoint, self.prefix, self.mode = checkpoint, prefix, mode
        self.dtype = MODES[mode]

    def tensor(self, name: str) -> torch.Tensor:
        """An unquantised tensor in the dtype of the mode."""
        return self.checkpoint.get(self.prefix + name).to(self.dtype)

    def fp32(self, name: str) -> torch.Tensor:
        """A tensor that stays fp32 in every mode (router)."""
        return self.checkpoint.get(self.prefix + name).float()

    def _matrix(self, weight: torch.Tensor, scale: torch.Tensor | None) -> Matrix:
        if scale is None:
            return Matrix(weight.to(self.dtype))
        if self.mode == "w8a8":
            return Matrix(*fp8.gaudi2_weight(weight, scale))
        return Matrix(fp8.dequantize(weight, scale).to(self.dtype))

    def matrix(self, name: str) -> Matrix:
        """The projection `name` (without `.weight`)."""
        full = f"{self.prefix}{name}.weight"
        scale = self.checkpoint.get(full + "_scale") if full + "_scale" in self.checkpoint else None
        return self._matrix(self.checkpoint.get(full), scale)

    def expert(self, index: int) -> tuple[Matrix, Matrix]:
        """(gate and up rows stacked [2I, H], down [H, I]) of one expert."""
        packed = f"{self.prefix}mlp.experts.gate_up_proj"
        if packed in self.checkpoint:
            return self._packed_row("gate_up_proj", index), self._packed_row("down_proj", index)
        gate, up, down = (self.matrix(f"mlp.experts.{index}.{part}_proj") for part in ("gate", "up", "down"))
        scale = None if gate.scale is None else torch.cat((gate.scale, up.scale))
        # E4M3 has no concatenation kernel on the CPU; bytes do.
        if gate.weight.dtype == fp8.E4M3:
            joined = torch.cat((gate.weight.view(torch.uint8), up.weight.view(torch.uint8))).view(fp8.E4M3)
        else:
            joined = torch.cat((gate.weight, up.weight))
        return Matrix(joined, scale), down

    def _packed_row(self, part: str, index: int) -> Matrix:
        name = f"{self.prefix}mlp.experts.{part}"
        scale = self.checkpoint.row(name + "_scale", index) if name + "_scale" in self.checkpoint else None
        return self._matrix(self.checkpoint.row(name, index), scale)
