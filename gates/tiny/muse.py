# SPDX-License-Identifier: Apache-2.0
"""The tiny Muse: configuration, starting weights, and its tensors as the MXFP4 layout has them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from gates.checkpoints import muse, muse_chat
from gates.checkpoints.muse_layout import PREFIX, layout
from gates.checkpoints.muse_shapes import PUBLISHED
from gates.oracle import mxfp4
from gates.tiny import start
from gates.tiny.family import Family, Tensors
from gates.tiny.turns import MUSE

SMALL: dict[str, Any] = {
    **start.SIZES,
    "moe_hidden_size": 64,
    "moe_intermediate_size": 64,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "qk_scale_factor": 6.25,  # with 1 no attention of this head size could be sharp
    "output_multiplier": 2**0.5,  # sqrt(256 / hidden size), as published
    "bos_token_id": muse_chat.MARKERS.ids()["<|end_of_text|>"],
    "eos_token_id": muse_chat.MARKERS.ids()["<|eot|>"],
}
CONFIG = {**PUBLISHED, **SMALL}
GATE = CONFIG["residual_gate_temperature"]  # a gate of so much weighs its branch by sigmoid(1)


class MuseText(torch.nn.Module):
    """Hugging Face's text model with a head: Muse's whole model without its vision and audio parts."""

    def __init__(self, dtype: torch.dtype, attention: str) -> None:
        super().__init__()
        from transformers import MuseSparkTextConfig, MuseSparkTextModel

        config = MuseSparkTextConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})
        config._experts_implementation = "eager"
        self.model = MuseSparkTextModel._from_config(config, dtype=dtype, attn_implementation=attention)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        self.config = config

    def forward(self, ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        """`.logits` [B, T, vocabulary] of token ids [B, T], scaled and capped as the published model does."""
        hidden = self.model(ids, use_cache=use_cache).last_hidden_state
        cap = self.config.final_logit_softcapping
        return SimpleNamespace(logits=cap * torch.tanh(self.lm_head(hidden) * self.config.output_multiplier / cap))


@torch.no_grad()
def lay(model: MuseText) -> None:
    """Fill the model in place, from torch's global generator."""
    for name, weight in model.named_parameters():
        if name.endswith("residual_gate.gate"):
            weight.fill_(-GATE)
        elif weight.dim() > 1:
            weight.normal_(0, weight.shape[-1] ** -0.5)
    code = start.codes()
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.normal_(0, 0.02)
    embedding[:, 0] = 3.0
    embedding[:, start.block(0)] = code * start.CODE**0.5
    head.normal_(0, 0.02)
    head[:, start.block(5)] = code * 2
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.normal_(0.0, 0.01)
    first, last = model.model.layers[0], model.model.layers[-1]
    start.look_back(first.self_attn, theta=CONFIG["rope_parameters"]["rope_theta"], fastest=4)
    start.match(last.self_attn)
    for layer in (first, last):
        layer.post_attention_residual_gate.gate.fill_(GATE)


def build() -> MuseText:
    """The model, laid out but not trained."""
    model = MuseText(torch.float32, "sdpa")
    lay(model)
    return model


def _by_published_name(state: Tensors) -> Tensors:
    return {PREFIX + n.removeprefix("model.") if n.startswith("model.") else n: v for n, v in state.items()}


def load(folder: Path) -> MuseText:
    """The model of a BF16 checkpoint; what Hugging Face keeps in fp32 stays so."""
    model = MuseText(torch.bfloat16, "eager")
    found: Tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        found |= load_file(shard)
    own = {name.replace(PREFIX, "model.", 1): value for name, value in found.items()}
    model.load_state_dict(own, strict=True)
    return model.eval()


def quantized(state: Tensors) -> Tensors:
    """All tensors of the MXFP4 layout from the model's state (fp32, experts stacked).

    Raises:
        ValueError: a tensor is missing, has another shape, or has no place in the layout.
    """
    values, found = {}, _by_published_name(state)
    for name, entry in layout(CONFIG).items():
        value = start.take(found, name, entry.shape)
        if name.rpartition(".")[2] in ("gate_up_proj", "down_proj"):
            values |= {f"{name}.{expert}": matrix.to(entry.dtype) for expert, matrix in enumerate(value)}
        else:
            values[name] = value.to(entry.dtype)
    start.refuse_rest(found)
    out: Tensors = {}
    for name, entry in layout(CONFIG, mxfp4=True).items():
        if entry.kind == "scale":
            continue
        value = values[name] if name in values else _expert(values, name)
        if entry.dtype == torch.uint8:
            out[name], out[name + "_scale"] = muse.quantize(value)
        else:
            out[name] = value.contiguous()
    return out


def _expert(values: Tensors, name: str) -> torch.Tensor:
    """One expert's matrix (`...experts.3.up_proj.weight`) out of the stacked ones."""
    at, expert, part, _ = name.rsplit(".", 3)
    if part == "down_proj":
        return values[f"{at}.down_proj.{expert}"]
    gate, up = values[f"{at}.gate_up_proj.{expert}"].chunk(2)
    return gate if part == "gate_proj" else up


def full(values: Tensors) -> Tensors:
    """The BF16 layout of `quantized` tensors; BF16 holds MXFP4 exactly."""

    def matrix(name: str) -> torch.Tensor:
        scale = values.get(f"{name}_scale")
        return values[name] if scale is None else mxfp4.dequantize(values[name], scale).to(torch.bfloat16)

    out, experts = {}, range(CONFIG["num_local_experts"])
    for name in layout(CONFIG):
        at, _, part = name.rpartition(".")
        if part == "down_proj":
            out[name] = torch.stack([matrix(f"{at}.{i}.down_proj.weight") for i in experts])
        elif part == "gate_up_proj":
            halves = [[matrix(f"{at}.{i}.{half}_proj.weight") for half in ("gate", "up")] for i in experts]
            out[name] = torch.stack([torch.cat(pair) for pair in halves])
        else:
            out[name] = values[name]
    return out


def write_config(folder: Path, quantised: bool) -> None:
    muse.write_config(folder, CONFIG, quantised)


FAMILY = Family("muse", MUSE, muse_chat.write_tokenizer, build, quantized, full, write_config, load)
