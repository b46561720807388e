# SPDX-License-Identifier: Apache-2.0
"""Configuration and starting weights of the tiny Beam.

The start is not random: two circuits that transformers of this size need thousands of steps to find are laid into
it, and everything is trained from there. Layer 0 attends to the four tokens before (RoPE alone decides, content does
not), and the full-attention layer compares them with the current ones and copies what followed: the induction head
of Olsson et al. 2022, "In-context Learning and Induction Heads". Residual dimensions: one constant, then six blocks
of `CODE`: the token, the four tokens before it, and the next token.
"""

from __future__ import annotations

from typing import Any

import torch

CODE = 20
BACK = 4  # tokens before, one per query head of layer 0
HEAD = 32
WINDOW = 64
CONFIG: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": BACK,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": 2048,
    "sliding_window": WINDOW,
    "moe_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
}


def block(index: int) -> slice:
    """Residual dimensions of block `index`: 0 the token, 1 to 4 the tokens before, 5 the next token."""
    return slice(1 + CODE * index, 1 + CODE * (index + 1))


def _turn(vector: torch.Tensor, positions: float) -> torch.Tensor:
    """`vector` [HEAD] rotated as RoPE (theta 10,000, halves paired) rotates it after so many positions."""
    half = HEAD // 2
    angle = positions / 10000 ** (torch.arange(half) / half)
    a, b = vector[:half], vector[half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))


def _look_back(attention: Any) -> None:
    """Head h attends to position i - h - 1 and writes that token's code into block h + 1."""
    beat = torch.zeros(HEAD)
    beat[:6] = 1.0  # the six fastest of the sixteen frequencies: sharp, and no two offsets in a window look alike
    query, key = attention.q_proj.weight, attention.k_proj.weight
    for weight in (query, key, attention.gate_proj.weight):
        weight.mul_(0.02)
    for head in range(BACK):
        query[head * HEAD : (head + 1) * HEAD, 0] = _turn(beat, -float(head + 1))
    for head in range(2):
        key[head * HEAD : (head + 1) * HEAD, 0] = beat
    attention.v_proj.weight.mul_(0.02)
    attention.o_proj.weight.mul_(0.02)
    for head in range(2):
        attention.v_proj.weight[head * HEAD : head * HEAD + CODE, block(0)] = torch.eye(CODE)
    for head in range(BACK):
        attention.o_proj.weight[block(head + 1), head * HEAD : head * HEAD + CODE] = torch.eye(CODE)


def _match(attention: Any) -> None:
    """Query (token, one before, ...) meets key (one before, two before, ...); the code there goes into block 5."""
    for weight in (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, attention.o_proj.weight):
        weight.mul_(0.1)
    for pair in range(2):  # query heads that share a key head
        for back in range(2 + 2 * pair):
            mix = torch.linalg.qr(torch.randn(HEAD, CODE))[0]
            attention.k_proj.weight[pair * HEAD : (pair + 1) * HEAD, block(back + 1)] += mix
            for head in (2 * pair, 2 * pair + 1):
                attention.q_proj.weight[head * HEAD : (head + 1) * HEAD, block(back)] += mix
        attention.v_proj.weight[pair * HEAD : pair * HEAD + CODE, block(0)] += torch.eye(CODE)
    for head in range(BACK):
        attention.o_proj.weight[block(5), head * HEAD : head * HEAD + CODE] += torch.eye(CODE)


@torch.no_grad()
def lay(model: Any) -> None:
    """Fill a `BeamForCausalLM` of `CONFIG` in place, from torch's global generator."""
    for name, weight in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            weight.fill_(2.5)  # with 1 no attention of this head size could be sharp
        elif "gate_bias" in name:
            weight.fill_(2.0)
        elif "layernorm" in name and "post" in name:
            weight.fill_(0.3)
        elif weight.dim() > 1:
            weight.normal_(0, weight.shape[-1] ** -0.5)
    code = torch.nn.functional.normalize(torch.randn(model.config.vocab_size, CODE), dim=-1)
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.normal_(0, 0.02)
    embedding[:, 0] = 3.0
    embedding[:, block(0)] = code * CODE**0.5
    head.normal_(0, 0.02)
    head[:, block(5)] = code * 3
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # as published: a large constant, which BF16 would round apart
            bias.normal_(28.0, 0.01)
    for index, place in ((0, _look_back), (model.config.num_hidden_layers - 1, _match)):
        layer = model.model.layers[index]
        place(layer.self_attn)
        layer.post_attention_layernorm.weight.fill_(1.0)
