# SPDX-License-Identifier: Apache-2.0
"""The tiny Beam: configuration, starting weights, and its tensors as the FP8 layout has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gates.checkpoints import beam, beam_chat, beam_values
from gates.checkpoints.beam_layout import layout
from gates.checkpoints.beam_shapes import PUBLISHED
from gates.tiny import start
from gates.tiny.family import Family, Tensors
from gates.tiny.turns import BEAM

SMALL: dict[str, Any] = {
    **start.SIZES,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
}
CONFIG = {**PUBLISHED, **SMALL}


@torch.no_grad()
def lay(model: Any) -> None:
    """Fill a `BeamForCausalLM` of `SMALL` in place, from torch's global generator."""
    for name, weight in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            weight.fill_(2.5)  # with 1 no attention of this head size could be sharp
        elif "gate_bias" in name:
            weight.fill_(2.0)
        elif "layernorm" in name and "post" in name:
            weight.fill_(0.3)
        elif weight.dim() > 1:
            weight.normal_(0, weight.shape[-1] ** -0.5)
    code = start.codes()
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.normal_(0, 0.02)
    embedding[:, 0] = 3.0
    embedding[:, start.block(0)] = code * start.CODE**0.5
    head.normal_(0, 0.02)
    head[:, start.block(5)] = code * 3
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # as published: a large constant, which BF16 would round apart
            bias.normal_(28.0, 0.01)
    first, last = model.model.layers[0], model.model.layers[-1]
    start.look_back(first.self_attn, theta=10000, fastest=6)
    start.match(last.self_attn)
    for layer in (first, last):
        layer.post_attention_layernorm.weight.fill_(1.0)


def build() -> Any:
    """The model, laid out but not trained."""
    from transformers import BeamConfig, BeamForCausalLM

    model = BeamForCausalLM._from_config(
        BeamConfig(**SMALL), attn_implementation="sdpa", experts_implementation="eager"
    )
    lay(model)
    return model


def load(folder: Path) -> Any:
    """Hugging Face's model of a checkpoint, in BF16."""
    from transformers import BeamForCausalLM

    return BeamForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()


def split_experts(state: Tensors) -> Tensors:
    """HF's stacked expert tensors as one tensor a matrix, the names of the published checkpoint."""
    out = {}
    for name, value in state.items():
        at, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj"):
            out[name] = value
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if last == "gate_up_proj":
                gate, up = matrix.chunk(2)
                parts = {"gate_proj": gate, "up_proj": up}
            out |= {f"{at}.{expert}.{part}.weight": weight for part, weight in parts.items()}
    return out


def quantized(state: Tensors) -> Tensors:
    """All tensors of the FP8 layout from HF's state (fp32, experts stacked).

    Raises:
        ValueError: a tensor is missing, has another shape, or has no place in the layout.
    """
    values, found = {}, split_experts(state)
    for name, entry in layout(CONFIG, fp8=True).items():
        if entry.kind == "scale":
            continue
        value = start.take(found, name, entry.shape)
        if entry.dtype == torch.float8_e4m3fn:
            weight, scale = beam_values.quantize(value.to(torch.bfloat16), torch.float32)
            values |= {name: weight, name + "_scale": scale}
        else:
            values[name] = value.to(entry.dtype)
    start.refuse_rest(found)
    return values


def full(values: Tensors) -> Tensors:
    """The BF16 layout of `quantized` tensors, rounded once more."""
    out = {}
    for name, value in values.items():
        if name.endswith("_scale"):
            continue
        scale = values.get(name + "_scale")
        out[name] = value if scale is None else (value.float() * scale.float()).to(torch.bfloat16)
    return out


def write_config(folder: Path, quantised: bool) -> None:
    beam.write_config(folder, CONFIG, quantised, bf16_experts=False)


FAMILY = Family("beam", BEAM, beam_chat.write_tokenizer, build, quantized, full, write_config, load)
