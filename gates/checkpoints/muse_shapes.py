# SPDX-License-Identifier: Apache-2.0
"""Named Muse Spark text configurations: the published one and small ones for tests."""

PUBLISHED = {
    "model_type": "muse_spark_text",
    "vocab_size": 202048,
    "hidden_size": 8192,
    "intermediate_size": 16384,
    "num_hidden_layers": 62,
    "num_attention_heads": 128,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "post_norm_eps": 1e-8,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "qk_scale_factor": 5.4730064863875,
    "output_multiplier": 0.1767766952966369,
    "final_logit_softcapping": 20.0,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 4096,
    "moe_hidden_size": 4096,
    "routed_scaling_factor": 1.0,
    "residual_gate_temperature": 0.3,
    "bos_token_id": 200000,
    "eos_token_id": 200001,
}

_TINY = {
    "vocab_size": 211, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 512,
    "sliding_window": 8, "num_local_experts": 16, "num_experts_per_tok": 3, "moe_hidden_size": 96,
    "moe_intermediate_size": 256, "routed_scaling_factor": 2.5, "output_multiplier": 0.35, "qk_scale_factor": 2.25,
    "final_logit_softcapping": 2.0, "bos_token_id": 1, "eos_token_id": 2,
    "mlp_layer_types": ["sparse", "sparse", "dense", "sparse", "sparse", "sparse", "sparse", "sparse"],
}  # fmt: skip

_DIFFERENCES = {
    # Layers as published: those without RoPE attend in full. Latent and expert sizes differ.
    "tiny": _TINY,
    # RoPE and window chosen apart: a sliding layer without RoPE, a full one with it; an eps that cannot hide.
    "crossed": {
        **_TINY,
        "post_norm_eps": 1e-2,
        "layer_types": ["full_attention", "sliding_attention"] * 4,
        "layer_rope_theta": [500000.0, 0, 0, 500000.0] * 2,
    },
    # Served end to end: pages of 128 tokens, a window of two, 8 heads' worth of ranks.
    "served": {
        **_TINY,
        "vocab_size": 512, "num_key_value_heads": 8, "max_position_embeddings": 2048, "sliding_window": 256,
        "num_local_experts": 8, "mlp_layer_types": ["sparse"] * 8, "final_logit_softcapping": 20.0,
    },
}  # fmt: skip

SHAPES = {name: {**PUBLISHED, **difference} for name, difference in _DIFFERENCES.items()}
