# SPDX-License-Identifier: Apache-2.0
"""Tensor names, shapes and dtypes of a Muse Spark checkpoint (text part), from its text config alone.

The BF16 layout stacks the experts of a layer in two tensors without a `.weight` ending. Quark's MXFP4 export has
one tensor per expert matrix, packed with a scale tensor beside it, but for the first and the last layer,
which are BF16; nothing else is quantised.
"""

import torch

from gates.checkpoints.beam_layout import BF16, FP32, Entry

PREFIX = "model.language_model."
GROUP = 32
UINT8 = torch.uint8


def mlp_types(config: dict) -> list[str]:
    """Every layer has experts unless the config says otherwise."""
    return config.get("mlp_layer_types") or ["sparse"] * config["num_hidden_layers"]


def unquantized_layers(config: dict) -> tuple[int, int]:
    """First and last layer."""
    return 0, config["num_hidden_layers"] - 1


def layout(config: dict, *, mxfp4: bool = False) -> dict[str, Entry]:
    """All text tensors in file order; `mxfp4` gives the Quark export instead of BF16."""
    hidden, latent, head = config["hidden_size"], config["moe_hidden_size"], config["head_dim"]
    heads, kv, experts = config["num_attention_heads"], config["num_key_value_heads"], config["num_local_experts"]
    inner, expert_inner = config["intermediate_size"], config["moe_intermediate_size"]
    table: dict[str, Entry] = {f"{PREFIX}embed_tokens.weight": Entry((config["vocab_size"], hidden), BF16, "embed")}

    def matrix(name: str, *shape: int) -> None:
        table[f"{name}.weight"] = Entry(shape, BF16, "matrix")

    def packed(name: str, rows: int, columns: int) -> None:
        table[f"{name}.weight"] = Entry((rows, columns // 2), UINT8, "matrix")
        table[f"{name}.weight_scale"] = Entry((rows, columns // GROUP), UINT8, "scale")

    for index, kind in enumerate(mlp_types(config)):
        at = f"{PREFIX}layers.{index}."
        for name, rows in (("q", heads), ("k", kv), ("v", kv), ("gate", heads)):
            matrix(f"{at}self_attn.{name}_proj", rows * head, hidden)
        matrix(f"{at}self_attn.o_proj", hidden, heads * head)
        for norm in ("input", "pre_feedforward", "post_feedforward"):
            table[f"{at}{norm}_layernorm.weight"] = Entry((hidden,), BF16, "centred_norm")
        for place in ("attention", "feedforward"):
            table[f"{at}post_{place}_residual_gate.gate"] = Entry((hidden,), FP32, "residual_gate")
        if kind == "dense":
            for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                matrix(f"{at}mlp.{name}_proj", *shape)
            continue
        table[f"{at}mlp.gate.weight"] = Entry((experts, hidden), FP32, "router")
        table[f"{at}mlp.gate.e_score_correction_bias"] = Entry((experts,), FP32, "router_bias")
        matrix(f"{at}mlp.pre_expert_proj", latent, hidden)
        table[f"{at}mlp.pre_expert_norm.weight"] = Entry((latent,), BF16, "centred_norm")
        matrix(f"{at}mlp.post_expert_proj", hidden, latent)
        table[f"{at}mlp.experts.post_expert_norm.weight"] = Entry((latent,), BF16, "centred_norm")
        if not mxfp4:
            table[f"{at}mlp.experts.gate_up_proj"] = Entry((experts, 2 * expert_inner, latent), BF16, "matrix")
            table[f"{at}mlp.experts.down_proj"] = Entry((experts, latent, expert_inner), BF16, "matrix")
            continue
        put = matrix if index in unquantized_layers(config) else packed
        for expert in range(experts):
            for name, shape in (
                ("gate", (expert_inner, latent)), ("up", (expert_inner, latent)), ("down", (latent, expert_inner)),
            ):  # fmt: skip
                put(f"{at}mlp.experts.{expert}.{name}_proj", *shape)
    table[f"{PREFIX}norm.weight"] = Entry((hidden,), BF16, "norm")
    table["lm_head.weight"] = Entry((config["vocab_size"], hidden), BF16, "head")
    return table


def quantization_config(config: dict) -> dict:
    """Quark's section for MXFP4 weights and dynamic MXFP4 activations, with everything but experts excluded."""
    group = {
        "dtype": "fp4", "qscheme": "per_group", "group_size": GROUP, "scale_format": "e8m0", "ch_axis": -1,
        "symmetric": None, "observer_cls": "PerGroupMinMaxObserver", "scale_calculation_mode": "even",
        "mx_element_dtype": None, "is_scale_quant": False,
    }  # fmt: skip
    return {
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "global_quant_config": {
            "weight": {**group, "is_dynamic": False},
            "input_tensors": {**group, "is_dynamic": True},
            "output_tensors": None,
            "bias": None,
            "target_device": None,
        },
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "exclude": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*mlp\\.(gate|pre_expert_proj|post_expert_proj)$",
            "re:.*mlp\\.(gate_proj|up_proj|down_proj)$",
            *(f"re:.*layers\\.{layer}\\..*" for layer in unquantized_layers(config)),
        ],
        "export": {
            "kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder", "weight_format": "real_quantized",
            "weight_merge_groups": None,
        },
    }  # fmt: skip
