# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints of stock architectures with random weights, as a user would download them.

    folder = make("qwen3_moe", tmp_path)          # Hugging Face layout: config, safetensors, tokenizer
    folder = make("llama", tmp_path, num_hidden_layers=4)

Weights are drawn so that logits spread (standard deviation about 1.2) and greedy choices are rarely ties.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from gates.hpusim import tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": tokenizer.VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "bos_token_id": 0,
}
_MOE: dict[str, Any] = {
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_moe": _MOE,
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": None},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "sliding_window": 256,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "query_pre_attn_scalar": 32,
        "tie_word_embeddings": True,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 64,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "head_dim": 32,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        # hidden_size must be at least the padded prefill: see docs/upstream-checks.md
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "head_dim": 64,
    },
}
# What Hugging Face leaves out of a written config and vLLM needs.
_CONFIG_EXTRA = {"deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}}


def config(architecture: str, **overrides: Any) -> Any:
    """The `transformers` config of a tiny `architecture`; ValueError for an unknown name."""
    from transformers import AutoConfig

    if architecture not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {architecture!r}; known: {', '.join(ARCHITECTURES)}")
    values = {**_COMMON, **ARCHITECTURES[architecture], **overrides}
    return AutoConfig.for_model(architecture, **values)


def _draw(model: Any, seed: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "embed_tokens" in name:
            value = noise * (1.2 / parameter.shape[-1] ** 0.5 if model.config.tie_word_embeddings else 1.0)
        elif parameter.dim() >= 2:
            # fused expert tensors [experts, in, out] of some models: either way the larger fan keeps the scale sane
            value = noise / parameter.shape[-1] ** 0.5
        elif name.endswith("bias") or "sinks" in name:
            value = 0.1 * noise
        else:
            value = (0.0 if "gemma" in model.config.model_type else 1.0) + 0.1 * noise
        if name.startswith("lm_head"):
            value = value * 1.2
        parameter.data.copy_(value)


def make(architecture: str, root: Path, *, seed: int = 0, dtype: str = "bfloat16", **overrides: Any) -> Path:
    """Write a checkpoint below `root` and return its folder; made once per set of arguments."""
    import torch
    from transformers import AutoModelForCausalLM

    key = json.dumps([architecture, seed, dtype, overrides], sort_keys=True, default=str)
    folder = root / f"{architecture}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    if (folder / "complete").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_config(config(architecture, **overrides), dtype=torch.float32)
    _draw(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    extra = _CONFIG_EXTRA.get(architecture)
    if extra:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **extra}, indent=1))
    tokenizer.save(folder)
    (folder / "complete").touch()
    return folder
