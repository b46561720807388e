# SPDX-License-Identifier: Apache-2.0
"""Circuits that the tiny models start from.

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
LAYERS = 4  # three with a sliding window, then a full one
VOCABULARY = 384
# What both tiny models share, under the names of Hugging Face's configurations.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": BACK,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": 2048,
    "sliding_window": WINDOW,
}


def block(index: int) -> slice:
    """Residual dimensions of block `index`: 0 the token, 1 to 4 the tokens before, 5 the next token."""
    return slice(1 + CODE * index, 1 + CODE * (index + 1))


def _turn(vector: torch.Tensor, positions: float, theta: float) -> torch.Tensor:
    """`vector` [HEAD] rotated as RoPE (halves paired) rotates it after so many positions."""
    half = HEAD // 2
    angle = positions / theta ** (torch.arange(half) / half)
    a, b = vector[:half], vector[half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))


def look_back(attention: Any, theta: float, fastest: int) -> None:
    """Head h attends to position i - h - 1 and writes that token's code into block h + 1.

    Args:
        fastest: how many frequencies of RoPE to look by: few are sharp, but two offsets in a window may look alike.
    """
    beat = torch.zeros(HEAD)
    beat[:fastest] = 1.0
    query, key = attention.q_proj.weight, attention.k_proj.weight
    for weight in (query, key, attention.gate_proj.weight):
        weight.mul_(0.02)
    for head in range(BACK):
        query[head * HEAD : (head + 1) * HEAD, 0] = _turn(beat, -float(head + 1), theta)
    for head in range(2):
        key[head * HEAD : (head + 1) * HEAD, 0] = beat
    attention.v_proj.weight.mul_(0.02)
    attention.o_proj.weight.mul_(0.02)
    for head in range(2):
        attention.v_proj.weight[head * HEAD : head * HEAD + CODE, block(0)] = torch.eye(CODE)
    for head in range(BACK):
        attention.o_proj.weight[block(head + 1), head * HEAD : head * HEAD + CODE] = torch.eye(CODE)


def match(attention: Any) -> None:
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


def codes() -> torch.Tensor:
    """[VOCABULARY, CODE]: a unit vector for every token."""
    return torch.nn.functional.normalize(torch.randn(VOCABULARY, CODE), dim=-1)


def take(found: dict[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Remove a tensor from `found` and return it.

    Raises:
        ValueError: it is missing or has another shape.
    """
    value = found.pop(name, None)
    if value is None or tuple(value.shape) != shape:
        raise ValueError(f"{name}: {value if value is None else tuple(value.shape)}, the layout has {shape}")
    return value.detach()


def refuse_rest(found: dict[str, torch.Tensor]) -> None:
    """Raises ValueError when a tensor is left that has no place in the layout."""
    if found:
        raise ValueError(f"tensors without a place in the layout: {sorted(found)}")
