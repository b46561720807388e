# SPDX-License-Identifier: Apache-2.0
"""transformers' own Muse Spark text model with the weights of a generated checkpoint."""

from pathlib import Path

import torch

from gates.checkpoints.muse_layout import PREFIX
from gates.oracle.checkpoint import Checkpoint
from gates.oracle.muse.weights import MuseWeights


def text_config(checkpoint: Checkpoint):
    """MuseSparkTextConfig with eager attention and experts."""
    from transformers import MuseSparkTextConfig

    config = MuseSparkTextConfig.from_dict(checkpoint.config["text_config"])
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Tensors by the text model's own names, experts stacked and decoded."""
    tensors = {n.removeprefix(PREFIX): checkpoint.get(n) for n in checkpoint.names() if n.startswith(PREFIX)}
    for name in [name for name in tensors if ".mlp.experts.0.down_proj.weight" in name and "scale" not in name]:
        at = name.split("mlp.experts.")[0]
        weights = MuseWeights(checkpoint, PREFIX + at, "bf16")
        count = checkpoint.config["text_config"]["num_local_experts"]
        experts = [weights.expert(index) for index in range(count)]
        tensors = {n: v for n, v in tensors.items() if not n.startswith(f"{at}mlp.experts.") or "norm" in n}
        tensors[f"{at}mlp.experts.gate_up_proj"] = torch.stack([gate_up.weight for gate_up, _ in experts])
        tensors[f"{at}mlp.experts.down_proj"] = torch.stack([down.weight for _, down in experts])
    return tensors


def published(folder: Path, dtype: torch.dtype):
    """The text model in `dtype`; what it keeps in fp32 stays so."""
    from transformers import MuseSparkTextModel

    checkpoint = Checkpoint(folder)
    model = MuseSparkTextModel._from_config(text_config(checkpoint), dtype=dtype)
    model.load_state_dict(state(checkpoint), strict=True)
    return model.eval()
