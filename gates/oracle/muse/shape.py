# SPDX-License-Identifier: Apache-2.0
"""What the Muse reference reads from `config.json`, with the published defaults."""

from dataclasses import dataclass

from gates.oracle.checkpoint import CheckpointError


@dataclass(frozen=True)
class MuseShape:
    """Sizes and factors of one Muse Spark text model; the per-layer tuples have one entry a layer."""

    vocab_size: int = 202048
    hidden_size: int = 8192
    num_hidden_layers: int = 62
    num_attention_heads: int = 128
    num_key_value_heads: int = 16
    head_dim: int = 64
    num_local_experts: int = 256
    num_experts_per_tok: int = 8
    moe_hidden_size: int = 4096
    moe_intermediate_size: int = 4096
    routed_scaling_factor: float = 1.0
    rms_norm_eps: float = 1e-5
    post_norm_eps: float = 1e-8
    sliding_window: int = 2048
    qk_scale_factor: float = 5.4730064863875
    output_multiplier: float = 0.1767766952966369
    final_logit_softcapping: float = 20.0
    residual_gate_temperature: float = 0.3
    layer_types: tuple[str, ...] = ()
    layer_rope_theta: tuple[float, ...] = ()
    mlp_layer_types: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: dict) -> "MuseShape":
        """From the parsed `config.json`, wrapper or text model. Raises CheckpointError for another model type."""
        if config.get("model_type") == "muse_spark":
            config = config.get("text_config") or {}
        elif config.get("model_type") != "muse_spark_text":
            found = config.get("model_type")
            raise CheckpointError(f"config.json: model_type is {found!r}, this reference scores 'muse_spark'")
        layers = config.get("num_hidden_layers", 62)
        every_fourth = [(layers - 1 - i) % 4 == 0 for i in range(layers)]
        theta = (config.get("rope_parameters") or {}).get("rope_theta", 500_000.0)
        lists = {
            "layer_types": ["full_attention" if last else "sliding_attention" for last in every_fourth],
            "layer_rope_theta": [0 if last else theta for last in every_fourth],
            "mlp_layer_types": ["sparse"] * layers,
        }
        plain = {name: config[name] for name in cls.__dataclass_fields__ if name not in lists and name in config}
        return cls(**plain, **{name: tuple(config.get(name) or value) for name, value in lists.items()})

    def window(self, layer: int) -> int | None:
        """Keys a query sees, itself included; None sees all."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    def is_sparse(self, layer: int) -> bool:
        """A mixture-of-experts layer."""
        return self.mlp_layer_types[layer] == "sparse"
