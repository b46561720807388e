# SPDX-License-Identifier: Apache-2.0
"""What the Beam reference reads from `config.json`, with the published defaults."""

from dataclasses import dataclass

from gates.oracle.checkpoint import CheckpointError


@dataclass(frozen=True)
class BeamShape:
    """Sizes and switches of one Beam checkpoint; `layer_types` and `mlp_layer_types` have one entry a layer."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    sliding_window: int
    final_logit_softcapping: float | None
    layer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    rope_theta: float

    @classmethod
    def from_config(cls, config: dict) -> "BeamShape":
        """From the parsed `config.json`. Raises CheckpointError for another model type."""
        if config.get("model_type") != "beam":
            found = config.get("model_type")
            raise CheckpointError(f"config.json: model_type is {found!r}, this reference scores 'beam'")
        layers = config.get("num_hidden_layers", 52)
        full = [(i + 1) % 6 == 0 or i == layers - 1 for i in range(layers)]
        types = config.get("layer_types") or ["full_attention" if f else "sliding_attention" for f in full]
        mlp = config.get("mlp_layer_types") or ["dense" if i < 3 else "sparse" for i in range(layers)]
        rope = config.get("rope_parameters") or {}
        rope = rope.get("sliding_attention", rope)
        return cls(
            vocab_size=config.get("vocab_size", 151936),
            hidden_size=config.get("hidden_size", 5120),
            num_hidden_layers=layers,
            num_attention_heads=config.get("num_attention_heads", 48),
            num_key_value_heads=config.get("num_key_value_heads", 8),
            head_dim=config.get("head_dim", 128),
            num_experts=config.get("num_experts", 256),
            num_experts_per_tok=config.get("num_experts_per_tok", 8),
            n_group=config.get("n_group", 8),
            topk_group=config.get("topk_group", 4),
            norm_topk_prob=config.get("norm_topk_prob", True),
            routed_scaling_factor=float(config.get("routed_scaling_factor", 2.5)),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            sliding_window=config.get("sliding_window", 512),
            final_logit_softcapping=config.get("final_logit_softcapping", 30.0),
            layer_types=tuple(types),
            mlp_layer_types=tuple(mlp),
            rope_theta=float(rope.get("rope_theta", 10000.0)),
        )

    def is_full(self, layer: int) -> bool:
        """Full attention without positional encoding, as against a RoPE layer with a window."""
        return self.layer_types[layer] == "full_attention"

    def is_sparse(self, layer: int) -> bool:
        """A mixture-of-experts layer."""
        return self.mlp_layer_types[layer] == "sparse"
