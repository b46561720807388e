# SPDX-License-Identifier: Apache-2.0
"""Weights of one Muse layer, from the BF16 layout (experts stacked) or Quark MXFP4 (experts one by one)."""

import torch

from gates.oracle import mxfp4
from gates.oracle.beam.weights import LayerWeights, Matrix
from gates.oracle.checkpoint import Checkpoint, CheckpointError

MODES = {"fp32": torch.float32, "bf16": torch.bfloat16, "w4a16": torch.bfloat16}
PREFIXES = ("model.language_model.", "model.", "")


def text_prefix(checkpoint: Checkpoint) -> str:
    """What stands before the names of the text model. Raises CheckpointError for another layout."""
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in checkpoint:
            return prefix
    raise CheckpointError(f"{checkpoint.path}: no embed_tokens.weight under {', '.join(PREFIXES[:2])}; another layout")


class MuseWeights(LayerWeights):
    """Tensors under `prefix`. MXFP4 is decoded to the dtype of the mode, which holds it exactly."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, mode: str) -> None:
        self.checkpoint, self.prefix, self.mode = checkpoint, prefix, mode
        self.dtype = MODES[mode]

    def _matrix(self, weight: torch.Tensor, scale: torch.Tensor | None) -> Matrix:
        if scale is None and weight.dtype == torch.uint8:
            raise CheckpointError(f"{self.prefix}: a packed weight without weight_scale; the checkpoint is incomplete")
        return Matrix((weight if scale is None else mxfp4.dequantize(weight, scale)).to(self.dtype))
