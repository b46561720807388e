# SPDX-License-Identifier: Apache-2.0
"""Checks of a Beam config: every refusal names the field, its value and what is possible."""

import math
from typing import Any

from transformers import GenerationConfig

# Fields of other families that say the same as Beam's fixed architecture: accepted with this value only.
SYNONYMS = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_activation": "silu",
    "num_shared_experts": 0,
    "n_shared_experts": 0,
    "mlp_bias": False,
    "gating": True,
}
# Fields that carry no arithmetic.
HARMLESS = {
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "compression_config",
    "dtype",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "quantization_config",
    "return_dict",
    "router_aux_loss_coef",
    "torch_dtype",
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
# Larger ones are a slip, and would be built as lists or tensors before anything else fails.
LARGEST, MOST_LAYERS = 2**31 - 1, 1024
REAL = ("rms_norm_eps", "routed_scaling_factor")
FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "attention_dropout": 0,
}


def refuse_unknown(fields: dict, synonyms: dict = SYNONYMS, model: str = "Beam") -> dict:
    """Fields without the `synonyms` that agree with `model` and the unknown ones that are off.

    Raises:
        ValueError: a field this model does not know is set, or a synonym contradicts the architecture.
    """
    kept = {}
    # Sampling defaults in config.json are dropped by transformers; generation_config.json counts.
    sampling = GenerationConfig._get_default_generation_params()
    for name, value in fields.items():
        if name in synonyms:
            if value is not None and value != synonyms[name]:
                raise ValueError(f"config.json: {name} is {value!r}, {model} has {synonyms[name]!r}")
        elif name in HARMLESS or name in sampling:
            kept[name] = value
        elif value not in (None, False) and value != [] and value != {}:
            raise ValueError(
                f"config.json: unknown field {name} = {value!r}; it may change the model, "
                "so it is refused. Set it to null if it has no effect on inference."
            )
    return kept


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(f"config.json: {message}")


def check_dtype(*values: Any) -> None:
    """Refuse what names no float type of torch (None: not given); transformers would fail with a bare attribute."""
    for value in values:
        name = str(value).removeprefix("torch.")
        require(
            value is None or name in ("auto", "bfloat16", "float16", "float32"),
            f"dtype is {value!r}, Beam is published in 'bfloat16'",
        )


def is_positive(value: Any) -> bool:
    """Whether `value` is a finite number above 0; JSON may hold NaN, infinities and truth values."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def check_numbers(config) -> None:
    """Refuse numbers that are none, out of range, or broken where only whole ones count. Raises ValueError."""
    for name in WHOLE:
        value = getattr(config, name)
        most = MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        require(
            is_positive(value) and isinstance(value, int), f"{name} must be a positive whole number, found {value!r}"
        )
        require(value <= most, f"{name} must be at most {most}, found {value!r}")
    for name in REAL:
        value = getattr(config, name)
        require(is_positive(value), f"{name} must be a positive number, found {value!r}")
    cap = config.final_logit_softcapping
    require(cap is None or is_positive(cap), f"final_logit_softcapping must be positive or null, found {cap!r}")


def check_fields(config) -> None:
    """Refuse values that contradict each other; `check_numbers` has passed. Raises ValueError."""
    for name, fixed in FIXED.items():
        require(getattr(config, name) == fixed, f"{name} is {getattr(config, name)!r}, Beam has {fixed!r}")
    require(
        config.num_attention_heads % config.num_key_value_heads == 0,
        f"num_attention_heads {config.num_attention_heads} is no multiple of "
        f"num_key_value_heads {config.num_key_value_heads}",
    )
    require(config.head_dim % 2 == 0, f"head_dim {config.head_dim} must be even for RoPE")
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
    _check_layers(config)


def _check_layers(config) -> None:
    layers = config.num_hidden_layers
    for name, kinds in (
        ("layer_types", {"full_attention", "sliding_attention"}),
        ("mlp_layer_types", {"dense", "sparse"}),
    ):
        values = getattr(config, name)
        require(isinstance(values, list | tuple), f"{name} must be a list with one entry a layer, found {values!r}")
        require(len(values) == layers, f"{name} has {len(values)} entries for {layers} layers")
        unknown = sorted({v if isinstance(v, str) else repr(v) for v in values} - kinds)
        require(not unknown, f"{name} holds {unknown}, known are {sorted(kinds)}")
    wrong = [
        i for i, (a, b) in enumerate(zip(config.layer_types, config.published_layer_types(), strict=True)) if a != b
    ]
    require(
        not wrong,
        f"layer_types differs from Beam's pattern (every sixth layer and the last in full) at layers {wrong[:5]}",
    )
