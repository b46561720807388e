# SPDX-License-Identifier: Apache-2.0
"""Named Beam configurations: the published one and small ones for tests."""

PUBLISHED = {
    "architectures": ["BeamForCausalLM"],
    "model_type": "beam",
    "vocab_size": 151936,
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "num_hidden_layers": 52,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": 512,
    "moe_intermediate_size": 2560,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": None,
    },
}

_DIFFERENCES = {
    # Two grids for component tests: eight layers with a mid full layer, and six wide-headed ones.
    "grid8": {
        "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "sliding_window": 8, "moe_intermediate_size": 32, "num_experts": 16, "num_experts_per_tok": 4,
        "n_group": 4, "topk_group": 2,
    },
    "grid6": {
        "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "sliding_window": 8, "moe_intermediate_size": 32, "num_experts": 32, "num_experts_per_tok": 8,
        "n_group": 8, "topk_group": 4,
    },
    # Served end to end: long enough for windows, chunks and pages of 128 tokens.
    "served": {
        "vocab_size": 448, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 7,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
        "sliding_window": 256, "moe_intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 4,
        "n_group": 4, "topk_group": 2,
    },
    # Sizes that divide awkwardly: nothing is a power of two, a window is no multiple of a page.
    "awkward": {
        "vocab_size": 454, "hidden_size": 72, "intermediate_size": 88, "num_hidden_layers": 7,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 2048,
        "sliding_window": 200, "moe_intermediate_size": 40, "num_experts": 24, "num_experts_per_tok": 5,
        "n_group": 6, "topk_group": 3,
    },
}  # fmt: skip

SHAPES = {name: {**PUBLISHED, **difference} for name, difference in _DIFFERENCES.items()}
