# SPDX-License-Identifier: Apache-2.0
"""Checks of a Muse Spark text config: every refusal names the field, its value and what is possible."""

import math

# Fields that say the same as the fixed architecture: accepted with this value only.
SYNONYMS = {
    "scoring_func": "sigmoid",
    "num_shared_experts": 0,
    "n_shared_experts": 0,
    "mlp_bias": False,
    "norm_topk_prob": True,
}
POSITIVE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window", "moe_intermediate_size",
    "moe_hidden_size", "num_local_experts", "num_experts_per_tok", "rms_norm_eps", "post_norm_eps",
    "routed_scaling_factor", "qk_scale_factor", "output_multiplier", "final_logit_softcapping",
    "residual_gate_temperature",
)  # fmt: skip
FIXED = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "attention_dropout": 0}
LAYER_KINDS = {
    "layer_types": {"full_attention", "sliding_attention"},
    "mlp_layer_types": {"dense", "sparse"},
}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"config.json: {message}")


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_fields(config) -> None:
    """Refuse values that are out of range or contradict each other. Raises ValueError."""
    for name in POSITIVE:
        value = getattr(config, name)
        _require(_is_number(value) and value > 0, f"{name} must be a positive number, found {value!r}")
    for name, fixed in FIXED.items():
        _require(getattr(config, name) == fixed, f"{name} is {getattr(config, name)!r}, Muse Spark has {fixed!r}")
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    _require(heads % kv == 0, f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv}")
    _require(config.head_dim % 2 == 0, f"head_dim {config.head_dim} must be even for RoPE")
    routes, experts = config.num_experts_per_tok, config.num_local_experts
    _require(routes <= experts, f"num_experts_per_tok {routes} exceeds num_local_experts {experts}")
    for name, kinds in LAYER_KINDS.items():
        _check_length(config, name)
        unknown = sorted(set(getattr(config, name)) - kinds)
        _require(not unknown, f"{name} holds {unknown}, known are {sorted(kinds)}")
    _check_rope(config)


def _check_length(config, name: str) -> None:
    found, layers = len(getattr(config, name)), config.num_hidden_layers
    _require(found == layers, f"{name} has {found} entries for {layers} layers")


def _check_rope(config) -> None:
    rope = config.rope_parameters
    kind, theta = rope.get("rope_type", "default"), rope.get("rope_theta")
    _require(kind == "default", f"rope_type {kind!r} is not Muse Spark's, only 'default' is")
    _require(_is_number(theta) and theta > 0, f"rope_parameters.rope_theta must be positive, found {theta!r}")
    extra = sorted(set(rope) - {"rope_type", "rope_theta"})
    _require(not extra, f"rope_parameters has unknown entries {extra}")
    _check_length(config, "layer_rope_theta")
    # Implementations disagree whether a layer's own theta or the global one counts; they agree when both are equal.
    for layer, value in enumerate(config.layer_rope_theta):
        good = _is_number(value) and value in (0, theta)
        _require(good, f"layer_rope_theta[{layer}] is {value!r}, must be 0 (no RoPE) or rope_theta {theta}")
