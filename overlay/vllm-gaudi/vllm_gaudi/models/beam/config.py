# SPDX-License-Identifier: Apache-2.0
"""Configuration of Beam-1.0, with the published 501B model as default.

Own class because the transformers release that knows Beam cannot load this
plug-in, and because a field that is dropped or contradicts another must stop
the server by name instead of giving a different model.
"""

from typing import Any

from vllm_gaudi.models.beam.config_checks import FULL, MODEL, flat_rope, judge
from vllm_gaudi.models.config_values import OVERRIDE, check_dtype, drop_idle, require, said_in
from vllm_gaudi.models.judged_config import BUILT, JudgedConfig


class BeamConfig(JudgedConfig):
    """Beam configuration.

    `layer_types[i]` decides attention: `sliding_attention` has RoPE and a window
    of `sliding_window` tokens (the token itself included), `full_attention` has
    no positional encoding and scales queries with the position.
    `mlp_layer_types[i]` is `dense` or `sparse`. `rope_parameters` is given per
    layer type in the file and kept flat here: there is one RoPE, that of the
    sliding layers.

    Raises:
        ConfigError: an unknown field that is switched on, or a value that
            cannot be or contradicts another; the message names the field.
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
        absent = [name for name in ("max_position_embeddings", "rope_parameters") if getattr(self, name) is None]
        kwargs = drop_idle(self, kwargs)
        if self.max_position_embeddings is None:
            self.max_position_embeddings = 8192
        if self.rope_parameters is None:
            self.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        self.dtype = check_dtype(MODEL, self.dtype, kwargs.pop("torch_dtype", None), kwargs.pop("dtype", None))
        kept = self.judge(kwargs)
        self.absent_fields = absent
        super().__post_init__(**kept)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; vLLM sets those of `--hf-overrides` one by one, and reads RoPE before it builds the model."""
        own = vars(self)
        # transformers sets RoPE anew with the object it read; an override is another one, even with the same numbers.
        if own.get("absent_fields") and not (name == "rope_parameters" and value is own[name]):
            own["absent_fields"] = [field for field in own["absent_fields"] if field != name]
        if BUILT in own:
            with said_in(OVERRIDE):
                require(name != "absent_fields", f"{name} is no name of a field; remove it")
                value = flat_rope(value) if name == "rope_parameters" else value
        super().__setattr__(name, value)

    def judge(self, beside: dict[str, Any]) -> dict[str, Any]:
        """See `config_checks.judge`."""
        return judge(self, {name: value for name, value in beside.items() if name != "absent_fields"})

    def to_dict(self) -> dict[str, Any]:
        """As transformers has it, without fields the file lacked: written out, a guess would look like a fact."""
        absent = {*vars(self).get("absent_fields", ()), "absent_fields"}
        return {name: value for name, value in super().to_dict().items() if name not in absent}

    def convert_rope_params_to_dict(self, **kwargs) -> dict:
        """Keep the flat form; the generic converter would add top-level keys."""
        return kwargs

    def is_full(self, layer: int) -> bool:
        """Whether `layer` attends in full, without RoPE."""
        return self.layer_types[layer] == FULL

    def is_sparse(self, layer: int) -> bool:
        """Whether `layer` has experts."""
        return self.mlp_layer_types[layer] == "sparse"
