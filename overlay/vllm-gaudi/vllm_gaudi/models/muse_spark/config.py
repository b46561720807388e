# SPDX-License-Identifier: Apache-2.0
"""Configuration of Muse Spark Open, with the published 816B model as default.

Own classes because the transformers release that knows the model cannot load
this plug-in, and because a field that is dropped or contradicts another must
stop the server by name.
"""

from typing import Any

from vllm_gaudi.models.config_values import (
    OVERRIDE,
    TOKEN_IDS,
    ConfigError,
    check_architecture,
    check_common,
    check_dtype,
    check_fixed,
    check_token_ids,
    drop_idle,
    refuse_unknown,
    require,
    said_in,
    shown,
)
from vllm_gaudi.models.judged_config import JudgedConfig
from vllm_gaudi.models.muse_spark.config_checks import (
    ARCHITECTURE,
    MODEL,
    SLIDING,
    SYNONYMS,
    judge,
)


class MuseSparkTextConfig(JudgedConfig):
    """The text model.

    `layer_types[i]` decides the window, `layer_rope_theta[i]` (0 = no RoPE) the positions: two separate facts.
    `mlp_layer_types[i]` is `sparse` or `dense`. There is one RoPE; every theta but 0 must be its theta.

    Raises:
        ConfigError: an unknown field that is switched on, or a value that contradicts another, named.
    """

    model_type = "muse_spark_text"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers' own convention)

    vocab_size: int = 202048
    hidden_size: int = 8192
    intermediate_size: int = 16384
    num_hidden_layers: int = 62
    num_attention_heads: int = 128
    num_key_value_heads: int = 16
    head_dim: int = 64
    hidden_act: str = "silu"
    max_position_embeddings: int = 1048576
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-5
    post_norm_eps: float = 1e-8
    use_cache: bool = True
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: float | int = 0.0
    sliding_window: int | None = 2048
    rope_parameters: dict | None = None
    layer_types: list[str] | None = None
    layer_rope_theta: list[float | int] | None = None
    mlp_layer_types: list[str] | None = None
    qk_scale_factor: float | int = 5.4730064863875
    output_multiplier: float | int = 0.1767766952966369
    final_logit_softcapping: float | int = 20.0
    num_local_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 4096
    moe_hidden_size: int = 4096
    routed_scaling_factor: float | int = 1.0
    residual_gate_temperature: float | int = 0.3
    output_router_logits: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = 200000
    eos_token_id: int | list[int] | None = 200001

    def __post_init__(self, **kwargs) -> None:
        kwargs = drop_idle(self, kwargs)
        self.dtype = check_dtype(MODEL, self.dtype, kwargs.pop("torch_dtype", None), kwargs.pop("dtype", None))
        if self.rope_parameters is None:
            self.rope_parameters = {"rope_type": "default", "rope_theta": 500000.0}
        super().__post_init__(**self.judge(kwargs))

    def judge(self, beside: dict[str, Any]) -> dict[str, Any]:
        """See `config_checks.judge`."""
        return judge(self, beside)

    def convert_rope_params_to_dict(self, **kwargs) -> dict:
        """Keep the flat form; the generic converter would add top-level keys."""
        return kwargs

    def window(self, layer: int) -> int | None:
        """Keys a query of `layer` sees, itself included; None sees all."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def has_rope(self, layer: int) -> bool:
        """Whether `layer` rotates queries and keys."""
        return self.layer_rope_theta[layer] != 0

    def is_sparse(self, layer: int) -> bool:
        """Whether `layer` has experts."""
        return self.mlp_layer_types[layer] == "sparse"


def _text_fields() -> set[str]:
    """Fields that the text config alone has."""
    return MuseSparkTextConfig.__dataclass_fields__.keys() - JudgedConfig.__dataclass_fields__.keys()


class MuseSparkConfig(JudgedConfig):
    """The published `config.json`: a text config beside vision and audio configs, which are kept but not used."""

    model_type = "muse_spark"
    has_no_defaults_at_init = True  # a default text config would be a guess; transformers builds one otherwise to print
    sub_configs = {"text_config": MuseSparkTextConfig}  # noqa: RUF012 (transformers' own convention)

    text_config: dict | MuseSparkTextConfig | None = None
    vision_config: dict | None = None
    audio_config: dict | None = None
    image_token_id: int = 200092
    video_token_id: int = 200091
    audio_token_id: int = 200038
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs) -> None:
        text = self.text_config
        require(text is not None, "text_config is missing; take it from the published checkpoint")
        if isinstance(text, dict):
            kind = text.get("model_type", MuseSparkTextConfig.model_type)
            require(
                kind == MuseSparkTextConfig.model_type,
                f"text_config.model_type is {shown(kind)}, must be 'muse_spark_text'",
            )
            with said_in("config.json: text_config"):
                self.text_config = MuseSparkTextConfig.from_dict(text)
        kwargs = drop_idle(self, kwargs)
        self.dtype = check_dtype(MODEL, self.dtype, kwargs.pop("torch_dtype", None), kwargs.pop("dtype", None))
        super().__post_init__(**self.judge(kwargs))

    def judge(self, beside: dict[str, Any]) -> dict[str, Any]:
        """Refuse a wrapper that contradicts its text config; what only vision and audio read is kept unseen."""
        text = self.text_config
        require(isinstance(text, MuseSparkTextConfig), f"text_config must be an object, found {shown(text)}")
        check_common(self, beside, MODEL)
        check_architecture(self, ARCHITECTURE, MODEL)
        check_fixed(self, {"tie_word_embeddings": False}, MODEL)
        check_token_ids(self, beside, ("image_token_id", "video_token_id", "audio_token_id"))
        for name in ((SYNONYMS.keys() | _text_fields()) & beside.keys()) - set(TOKEN_IDS):
            meant = getattr(text, name, SYNONYMS.get(name))
            require(
                beside[name] is None or beside[name] == meant,
                f"{name} = {shown(beside[name])} is beside text_config and not read there; put it into text_config",
            )
        return {name: value for name, value in beside.items() if value is not None}

    def update(self, config_dict: dict[str, Any]) -> None:
        """See `JudgedConfig.update`; what the file does not hold and no class declares is refused too."""
        known = vars(self).keys() | self.__dataclass_fields__.keys() | _text_fields()
        with said_in(OVERRIDE):
            refuse_unknown({k: v for k, v in config_dict.items() if k not in known}, SYNONYMS, MODEL)
        super().update(config_dict)

    def check(self) -> None:
        """Judge the wrapper and its text config. Raises ConfigError."""
        super().check()
        self.text_config.check()


class MetaNativeConfig(JudgedConfig):
    """Meta's own layout: always refused, since its query and key rows are in another RoPE order."""

    model_type = "musespark1x_omni"

    def __post_init__(self, **kwargs) -> None:
        raise ConfigError(
            "model_type 'musespark1x_omni' is Meta's native layout, whose query and key rows are ordered "
            "for another RoPE; serve the Hugging Face layout (model_type 'muse_spark') instead"
        )
