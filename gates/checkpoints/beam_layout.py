# SPDX-License-Identifier: Apache-2.0
"""Tensor names, shapes and dtypes of a Beam checkpoint, from its config alone.

The published BF16 layout keeps one tensor per expert matrix; the FP8 layout
(compressed-tensors, channel strategy) adds `weight_scale` [out, 1] to every
quantised matrix and leaves router, norms, gate bias, embedding and head alone.
"""

from dataclasses import dataclass

import torch

BF16, FP32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@dataclass(frozen=True)
class Entry:
    """One tensor: `kind` is matrix, scale, norm, router, router_bias, gate_bias, embed or head."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str


def layer_types(config: dict) -> list[str]:
    """Every sixth layer and the last attend in full, the others in a window."""
    last = config["num_hidden_layers"] - 1
    kind = {True: "full_attention", False: "sliding_attention"}
    return config.get("layer_types") or [kind[(i + 1) % 6 == 0 or i == last] for i in range(last + 1)]


def mlp_types(config: dict) -> list[str]:
    """The first three layers are dense."""
    layers = config["num_hidden_layers"]
    return config.get("mlp_layer_types") or ["dense" if i < 3 else "sparse" for i in range(layers)]


def layout(
    config: dict,
    *,
    fp8: bool = False,
    packed: bool = False,
    scale_dtype: torch.dtype = FP32,
    bf16_experts: bool = False,
) -> dict[str, Entry]:
    """All tensors of a checkpoint, in file order.

    Args:
        config: parsed `config.json`.
        fp8: quantise attention, dense MLP and experts.
        packed: experts as two stacked tensors a layer instead of one a matrix.
        scale_dtype: dtype of the scales on disk.
        bf16_experts: leave the experts BF16 in an FP8 checkpoint.
    """
    hidden, head = config["hidden_size"], config["head_dim"]
    heads, kv, experts = config["num_attention_heads"], config["num_key_value_heads"], config["num_experts"]
    inner, expert_inner = config["intermediate_size"], config["moe_intermediate_size"]
    table: dict[str, Entry] = {"model.embed_tokens.weight": Entry((config["vocab_size"], hidden), BF16, "embed")}

    def matrix(name: str, *shape: int, quantized: bool, suffix: str = ".weight") -> None:
        table[name + suffix] = Entry(shape, E4M3 if quantized else BF16, "matrix")
        if quantized:
            scale = name + suffix + "_scale" if suffix else name + "_scale"
            table[scale] = Entry((*shape[:-1], 1), scale_dtype, "scale")

    for index, kind in enumerate(mlp_types(config)):
        at = f"model.layers.{index}."
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            table[f"{at}{norm}_layernorm.weight"] = Entry((hidden,), BF16, "norm")
        for name, rows in (("q", heads), ("k", kv), ("v", kv), ("gate", heads)):
            matrix(f"{at}self_attn.{name}_proj", rows * head, hidden, quantized=fp8)
        matrix(f"{at}self_attn.o_proj", hidden, heads * head, quantized=fp8)
        for name in ("q_norm", "k_norm"):
            table[f"{at}self_attn.{name}.weight"] = Entry((head,), BF16, "norm")
        table[f"{at}self_attn.gate_bias"] = Entry((heads,), BF16, "gate_bias")
        if kind == "dense":
            for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                matrix(f"{at}mlp.{name}_proj", *shape, quantized=fp8)
            continue
        table[f"{at}mlp.gate.weight"] = Entry((experts, hidden), FP32, "router")
        table[f"{at}mlp.gate.e_score_correction_bias"] = Entry((experts,), FP32, "router_bias")
        quantized = fp8 and not bf16_experts
        if packed:
            matrix(f"{at}mlp.experts.gate_up_proj", experts, 2 * expert_inner, hidden, quantized=quantized, suffix="")
            matrix(f"{at}mlp.experts.down_proj", experts, hidden, expert_inner, quantized=quantized, suffix="")
            continue
        for expert in range(experts):
            for name, shape in (
                ("gate", (expert_inner, hidden)),
                ("up", (expert_inner, hidden)),
                ("down", (hidden, expert_inner)),
            ):
                matrix(f"{at}mlp.experts.{expert}.{name}_proj", *shape, quantized=quantized)
    table["model.norm.weight"] = Entry((hidden,), BF16, "norm")
    table["lm_head.weight"] = Entry((config["vocab_size"], hidden), BF16, "head")
    return table


def quantization_config(ignore: list[str]) -> dict:
    """compressed-tensors section: E4M3 weights per channel, dynamic E4M3 activations per token."""

    def args(strategy: str, dynamic: bool) -> dict:
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": dynamic}

    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": args("channel", False),
                "input_activations": args("token", True),
                "output_activations": None,
            }
        },
        "ignore": ignore,
    }
