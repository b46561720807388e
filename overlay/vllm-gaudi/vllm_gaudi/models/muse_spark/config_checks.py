# SPDX-License-Identifier: Apache-2.0
"""What a Muse Spark text config may hold: every refusal names the field, its value and what is possible."""

from typing import Any

from vllm_gaudi.models.config_values import (
    check_common,
    check_fixed,
    check_layer_lists,
    check_length,
    check_range,
    check_whole,
    drop_same_theta,
    is_number,
    refuse_unknown,
    require,
    shown,
    whole_rotation,
)

MODEL, ARCHITECTURE = "Muse Spark", "MuseSparkForConditionalGeneration"
FULL, SLIDING = "full_attention", "sliding_attention"
# Fields that say the same as the fixed architecture: accepted with this value only.
SYNONYMS = {
    "scoring_func": "sigmoid",
    "num_shared_experts": 0,
    "n_shared_experts": 0,
    "mlp_bias": False,
    "norm_topk_prob": True,
    "use_sliding_window": True,
    "use_qk_norm": True,
    "qk_layernorm": True,
    "partial_rotary_factor": 1.0,
}
WHOLE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "moe_intermediate_size",
    "moe_hidden_size", "num_local_experts", "num_experts_per_tok",
)  # fmt: skip
# Far beyond what a model is trained with, and far from where fp32 arithmetic with them breaks down.
RANGES = {
    "rms_norm_eps": (1e-12, 0.1),
    "post_norm_eps": (1e-12, 0.1),
    "routed_scaling_factor": (1e-3, 1e3),
    "qk_scale_factor": (1e-3, 1e3),
    "output_multiplier": (1e-4, 1e3),
    "final_logit_softcapping": (0.1, 1e4),
    "residual_gate_temperature": (1e-3, 1e3),
    "initializer_range": (0.0, 1e3),
}
THETA = (10.0, 1e12)
FIXED = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "attention_dropout": 0}
LAYER_KINDS = {"layer_types": {FULL, SLIDING}, "mlp_layer_types": {"dense", "sparse"}}


def judge(config, beside: dict[str, Any]) -> dict[str, Any]:
    """Refuse a text config that is not Muse Spark's, whether its fields come from the file or from an override.

    Args:
        config: declared fields.
        beside: fields the class does not declare.

    Returns:
        Those of `beside` that are worth keeping.

    Raises:
        ConfigError: naming the field, its value and what is possible.
    """
    check_common(config, beside, MODEL)
    check_whole(config, WHOLE)
    theta = check_rope(config.rope_parameters)
    _fill_layers(config, theta)
    kept = refuse_unknown(drop_same_theta(beside, theta), SYNONYMS, MODEL)
    for name, limits in RANGES.items():
        check_range(name, getattr(config, name), limits)
    check_fixed(config, FIXED, MODEL)
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    require(heads % kv == 0, f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv}")
    require(config.head_dim % 2 == 0, f"head_dim {config.head_dim} must be even for RoPE")
    routes, experts = config.num_experts_per_tok, config.num_local_experts
    require(routes <= experts, f"num_experts_per_tok {routes} exceeds num_local_experts {experts}")
    check_layer_lists(config, LAYER_KINDS)
    # Implementations disagree whether a layer's own theta or the global one counts; they agree when both are equal.
    for layer, value in enumerate(check_length(config, "layer_rope_theta")):
        good = is_number(value) and value in (0, theta)
        require(good, f"layer_rope_theta[{layer}] is {shown(value)}, must be 0 (no RoPE) or rope_theta {theta:g}")
    return kept


def _fill_layers(config, theta: float) -> None:
    """Lists that are left out: every fourth layer, counted from the last, attends in full and without RoPE."""
    every_fourth = [(config.num_hidden_layers - 1 - i) % 4 == 0 for i in range(config.num_hidden_layers)]
    if config.layer_types is None:
        config.layer_types = [FULL if last else SLIDING for last in every_fourth]
    if config.layer_rope_theta is None:
        config.layer_rope_theta = [0 if last else theta for last in every_fourth]
    if config.mlp_layer_types is None:
        config.mlp_layer_types = ["sparse"] * config.num_hidden_layers


def check_rope(rope: Any) -> float:
    """The theta of the single RoPE. Raises ConfigError for another RoPE, or none."""
    require(isinstance(rope, dict), f"rope_parameters must give rope_theta, found {shown(rope)}")
    kind, theta = rope.get("rope_type", "default"), rope.get("rope_theta")
    require(kind == "default", f"rope_type {shown(kind)} is not Muse Spark's, only 'default' is")
    extra = sorted(set(rope) - {"rope_type", "rope_theta"} - whole_rotation(rope), key=str)
    require(not extra, f"rope_parameters has unknown entries {shown(extra)}")
    check_range("rope_parameters.rope_theta", theta, THETA)
    return theta
