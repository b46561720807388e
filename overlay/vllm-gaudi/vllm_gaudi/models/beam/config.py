# SPDX-License-Identifier: Apache-2.0
"""Configuration of Beam-1.0, with the published 501B model as default.

Own class because the transformers release that knows Beam cannot load this
plug-in, and because a field that is dropped or contradicts another must stop
the server by name instead of giving a different model.
"""

from transformers import PretrainedConfig

from vllm_gaudi.models.beam.config_checks import (
    check_dtype,
    check_fields,
    check_numbers,
    is_positive,
    refuse_unknown,
    require,
)
from vllm_gaudi.models.beam.quant_section import check_section

FULL, SLIDING = "full_attention", "sliding_attention"


class BeamConfig(PretrainedConfig):
    """Beam configuration.

    `layer_types[i]` decides attention: `sliding_attention` has RoPE and a window
    of `sliding_window` tokens (the token itself included), `full_attention` has
    no positional encoding and scales queries with the position.
    `mlp_layer_types[i]` is `dense` or `sparse`. `rope_parameters` is given per
    layer type in the file and kept flat here: there is one RoPE, that of the
    sliding layers.

    Raises:
        ValueError: an unknown field that is switched on, or a value that
            contradicts another; the message names the field.
    """

    model_type = "beam"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers' own convention)

    vocab_size: int = 151936
    hidden_size: int = 5120
    intermediate_size: int = 20480
    num_hidden_layers: int = 52
    num_attention_heads: int = 48
    num_key_value_heads: int = 8
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int | None = None
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    sliding_window: int | None = 512
    rope_parameters: dict | None = None
    moe_intermediate_size: int = 2560
    num_experts: int = 256
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: float | int = 2.5
    output_router_logits: bool = False
    final_logit_softcapping: float | int | None = 30.0
    layer_types: list[str] | None = None
    mlp_layer_types: list[str] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs) -> None:
        # What the file must say itself: defaults here would be a guess (checked when weights are loaded).
        self.absent_fields = [
            name for name in ("max_position_embeddings", "rope_parameters") if getattr(self, name) is None
        ]
        kwargs.pop("absent_fields", None)
        if self.max_position_embeddings is None:
            self.max_position_embeddings = 8192
        check_dtype(self.dtype, kwargs.get("dtype"), kwargs.get("torch_dtype"))
        check_numbers(self)
        if self.layer_types is None:
            self.layer_types = self.published_layer_types()
        if self.mlp_layer_types is None:
            dense = min(3, self.num_hidden_layers)
            self.mlp_layer_types = ["dense"] * dense + ["sparse"] * (self.num_hidden_layers - dense)
        kwargs = refuse_unknown(kwargs)
        check_section(kwargs.get("quantization_config"))
        check_fields(self)
        self.rope_parameters = self._flat_rope(self.rope_parameters)
        if self.architectures is None:
            self.architectures = ["BeamForCausalLM"]
        super().__post_init__(**kwargs)

    def published_layer_types(self) -> list[str]:
        """Every sixth layer and the last one attend in full."""
        last = self.num_hidden_layers - 1
        return [FULL if (i + 1) % 6 == 0 or i == last else SLIDING for i in range(last + 1)]

    @staticmethod
    def _flat_rope(rope: dict | None) -> dict:
        """The single RoPE of the sliding layers as {rope_type, rope_theta}."""
        if rope is None:
            return {"rope_type": "default", "rope_theta": 10000.0}
        require(isinstance(rope, dict), f"rope_parameters must give rope_theta per layer type, found {rope!r}")
        if SLIDING in rope or FULL in rope:
            others = sorted(set(rope) - {SLIDING, FULL})
            require(not others, f"rope_parameters has entries {others} beside those of the layer types")
            full, rope = rope.get(FULL), rope.get(SLIDING)
            require(full is None, f"rope_parameters.{FULL} is {full!r}, must be null (full layers have no RoPE)")
        at = f"rope_parameters.{SLIDING}"
        require(isinstance(rope, dict) and "rope_theta" in rope, f"{at} must give rope_theta, found {rope!r}")
        kind, theta = rope.get("rope_type", "default"), rope["rope_theta"]
        require(kind == "default", f"rope_type {kind!r} is not Beam's, only 'default' is")
        extra = sorted(set(rope) - {"rope_type", "rope_theta"})
        require(not extra, f"rope_parameters has unknown entries {extra}")
        require(is_positive(theta), f"{at}.rope_theta must be a positive number, found {theta!r}")
        return {"rope_type": "default", "rope_theta": float(theta)}

    def convert_rope_params_to_dict(self, **kwargs) -> dict:
        """Keep the flat form; the generic converter would add top-level keys."""
        return kwargs

    def is_full(self, layer: int) -> bool:
        """Whether `layer` attends in full, without RoPE."""
        return self.layer_types[layer] == FULL

    def is_sparse(self, layer: int) -> bool:
        """Whether `layer` has experts."""
        return self.mlp_layer_types[layer] == "sparse"
