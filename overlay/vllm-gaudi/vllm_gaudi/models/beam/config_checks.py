# SPDX-License-Identifier: Apache-2.0
"""What a Beam config may hold: every refusal names the field, its value and what is possible."""

from typing import Any

from vllm_gaudi.models.beam.quant_section import check_section
from vllm_gaudi.models.config_values import (
    check_architecture,
    check_common,
    check_fixed,
    check_layer_lists,
    check_range,
    check_whole,
    drop_same_theta,
    refuse_unknown,
    require,
    shown,
    whole_rotation,
)

MODEL, ARCHITECTURE = "Beam", "BeamForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
# Fields of other families that say the same as Beam's fixed architecture: accepted with this value only.
SYNONYMS = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_activation": "silu",
    "num_shared_experts": 0,
    "n_shared_experts": 0,
    "mlp_bias": False,
    "gating": True,
    "use_sliding_window": True,
    "use_qk_norm": True,
    "qk_layernorm": True,
    "use_routing_bias": True,
    "attn_output_gate": True,
    "partial_rotary_factor": 1.0,
}
WHOLE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
)
# Far beyond what a model is trained with, and far from where fp32 arithmetic with them breaks down.
RANGES = {
    "rms_norm_eps": (1e-12, 0.1),
    "routed_scaling_factor": (1e-3, 1e3),
    "final_logit_softcapping": (0.1, 1e4),
    "initializer_range": (0.0, 1e3),
}
OPTIONAL = {"final_logit_softcapping"}
THETA = (10.0, 1e12)
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "attention_dropout": 0,
}
LAYER_KINDS = {"layer_types": {FULL, SLIDING}, "mlp_layer_types": {"dense", "sparse"}}


def judge(config, beside: dict[str, Any]) -> dict[str, Any]:
    """Refuse a config that is not Beam's, whether its fields come from the file or from an override.

    Args:
        config: declared fields; `rope_parameters` may be nested, and is flat afterwards.
        beside: fields the class does not declare.

    Returns:
        Those of `beside` that are worth keeping.

    Raises:
        ConfigError: naming the field, its value and what is possible.
    """
    check_common(config, beside, MODEL)
    check_architecture(config, ARCHITECTURE, MODEL)
    check_whole(config, WHOLE)
    if config.layer_types is None:
        config.layer_types = published_layer_types(config.num_hidden_layers)
    if config.mlp_layer_types is None:
        dense = min(3, config.num_hidden_layers)
        config.mlp_layer_types = ["dense"] * dense + ["sparse"] * (config.num_hidden_layers - dense)
    for name, limits in RANGES.items():
        check_range(name, getattr(config, name), limits, optional=name in OPTIONAL)
    flat = flat_rope(config.rope_parameters)
    if flat != config.rope_parameters:
        config.rope_parameters = flat
    kept = refuse_unknown(drop_same_theta(beside, flat["rope_theta"]), SYNONYMS, MODEL)
    section, alias = kept.get("quantization_config"), kept.get("compression_config")
    check_section(section)
    check_section(alias)
    require(
        section is None or alias is None or section == alias,
        "quantization_config and its alias compression_config differ; remove one",
    )
    check_fixed(config, FIXED, MODEL)
    _check_experts(config)
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    require(heads % kv == 0, f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv}")
    require(config.head_dim % 2 == 0, f"head_dim {config.head_dim} must be even for RoPE")
    _check_layers(config)
    return kept


def _check_experts(config) -> None:
    require(
        config.num_experts % config.n_group == 0,
        f"num_experts {config.num_experts} is no multiple of n_group {config.n_group}",
    )
    size = config.num_experts // config.n_group
    require(size >= 2, f"groups of {size} expert(s): a group's score is the sum of its two best")
    require(config.topk_group <= config.n_group, f"topk_group {config.topk_group} exceeds n_group {config.n_group}")
    reachable = config.topk_group * size
    require(
        config.num_experts_per_tok <= reachable,
        f"num_experts_per_tok {config.num_experts_per_tok} exceeds the {reachable} experts of the kept groups",
    )


def _check_layers(config) -> None:
    check_layer_lists(config, LAYER_KINDS)
    published = published_layer_types(config.num_hidden_layers)
    wrong = [i for i, (a, b) in enumerate(zip(config.layer_types, published, strict=True)) if a != b]
    require(
        not wrong,
        f"layer_types differs from Beam's pattern (every sixth layer and the last in full) at layers {wrong[:5]}",
    )


def published_layer_types(layers: int) -> list[str]:
    """Every sixth layer and the last one attend in full."""
    return [FULL if (i + 1) % 6 == 0 or i == layers - 1 else SLIDING for i in range(layers)]


def flat_rope(rope: Any) -> dict[str, Any]:
    """The single RoPE of the sliding layers as {rope_type, rope_theta}; a flat one stays. Raises ConfigError."""
    require(isinstance(rope, dict), f"rope_parameters must give rope_theta per layer type, found {shown(rope)}")
    if SLIDING in rope or FULL in rope:
        others = sorted(set(rope) - {SLIDING, FULL}, key=str)
        require(not others, f"rope_parameters has entries {shown(others)} beside those of the layer types")
        full, rope = rope.get(FULL), rope.get(SLIDING)
        require(full is None, f"rope_parameters.{FULL} is {shown(full)}, must be null (full layers have no RoPE)")
    at = f"rope_parameters.{SLIDING}"
    require(isinstance(rope, dict) and "rope_theta" in rope, f"{at} must give rope_theta, found {shown(rope)}")
    kind, theta = rope.get("rope_type", "default"), rope["rope_theta"]
    require(kind == "default", f"rope_type {shown(kind)} is not Beam's, only 'default' is")
    extra = sorted(set(rope) - {"rope_type", "rope_theta"} - whole_rotation(rope), key=str)
    require(not extra, f"rope_parameters has unknown entries {shown(extra)}")
    check_range(f"{at}.rope_theta", theta, THETA)
    return {"rope_type": "default", "rope_theta": float(theta)}
