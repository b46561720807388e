# SPDX-License-Identifier: Apache-2.0
"""The reference model of a checkpoint, quantised ones included: W8A8 is W8A8 in the reference too.

A quantised linear layer becomes: quantise the input per token to E4M3 (scale = amax / 240, the largest value of the
Gaudi 2), multiply, and the same for every expert of a MoE block, whose down projection requantises its own input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gates.hpusim.settings import settings

_NOT_FP8 = ("lm_head", "gate", "router")
_noise: list[torch.Generator] = []  # when set, quantisers see their input moved by one bf16 rounding


def fake_quantise(x: torch.Tensor) -> torch.Tensor:
    """x as its per-token E4M3 codes mean it, computed in the dtype of x."""
    if _noise:
        x = x * (1 + torch.randn(x.shape, generator=_noise[0]) * 2.0**-8).to(x.dtype)
    top = settings().personality.fp8_max
    scale = (x.abs().amax(-1, keepdim=True) + 1e-8) / top
    codes = (x * (1.0 / scale)).float().clamp(-top, top).to(torch.float8_e4m3fn)
    return (codes.float() * scale.float()).to(x.dtype)


def _experts(module: Any) -> Any:
    """Forward of a fused expert block (`gate_up_proj` [E, 2F, H], `down_proj` [E, H, F]) with quantised inputs."""

    def forward(hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        quantised = fake_quantise(rows)
        out = torch.zeros(rows.shape, dtype=torch.float32)
        for expert in range(module.gate_up_proj.shape[0]):
            token, slot = torch.where(top_k_index.reshape(rows.shape[0], -1) == expert)
            if not token.numel():
                continue
            gate, up = F.linear(quantised[token], module.gate_up_proj[expert]).chunk(2, dim=-1)
            inner = fake_quantise(module.act_fn(gate) * up)
            down = F.linear(inner, module.down_proj[expert]).float()
            weights = top_k_weights.reshape(rows.shape[0], -1)[token, slot].float()
            out.index_add_(0, token, down * weights[:, None])
        return out.to(hidden_states.dtype).reshape(hidden_states.shape)

    return forward


def disturb(model: Any, generator: torch.Generator) -> bool:
    """Move what rounding moves before a decision is taken on it: the inputs of routers (2^-6) and of quantisers (2^-8).

    False when the model takes no such decision.
    """
    routers = [module for name, module in model.named_modules() if name.endswith((".gate", ".router"))]

    def before(_: Any, args: tuple) -> tuple:
        noise = torch.randn(args[0].shape, generator=generator) * 2.0**-6
        return (args[0] * (1 + noise).to(args[0].dtype), *args[1:])

    for router in routers:
        router.register_forward_pre_hook(before)
    if model.quantised:
        _noise.append(generator)
    return bool(routers) or model.quantised


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The transformers model of `folder` in `dtype`, with quantised activations where the checkpoint asks for them."""
    from transformers import AutoModelForCausalLM

    config = json.loads((folder / "config.json").read_text())
    method = config.get("quantization_config", {}).get("quant_method")
    source = folder if method is None else folder / "dequantised"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval()
    _noise.clear()
    model.quantised = method == "compressed-tensors"
    if model.quantised:
        for name, module in model.named_modules():
            leaf = name.rsplit(".", 1)[-1]
            if isinstance(module, torch.nn.Linear) and leaf not in _NOT_FP8:
                module.register_forward_pre_hook(lambda _, args: (fake_quantise(args[0]), *args[1:]))
            elif hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
                module.forward = _experts(module)
    return model
