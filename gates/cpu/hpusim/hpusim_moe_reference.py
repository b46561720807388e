# SPDX-License-Identifier: Apache-2.0
"""float64 references of `mixture_of_experts`, one row at a time, and the inputs the MoE tests share."""

from __future__ import annotations

import torch
from hpusim_ops import randn

EXPERTS, HIDDEN, INNER = 5, 24, 20
ACTIVATIONS = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "relu": lambda x: torch.clamp(x, min=0),
}


def routing(tokens: int, k: int, dtype: torch.dtype, index: torch.dtype = torch.int64):
    generator = torch.Generator().manual_seed(tokens * 10 + k)
    table = torch.stack([torch.randperm(EXPERTS, generator=generator)[:k] for _ in range(tokens)])
    return table.to(index), torch.rand(tokens, k, generator=generator).to(dtype)


def weights(dtype: torch.dtype):
    """Gate, up `[H, I]` and down `[I, H]` of every expert."""
    shapes = ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
    return [[(randn(s, 100 * j + e) * 0.3).to(dtype) for e in range(EXPERTS)] for j, s in enumerate(shapes)]


def reference(x, table, router, expert, low=0, high=EXPERTS - 1):
    """float64 sum over the routes whose expert is in [low, high], one row at a time."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(table.shape[0]):
        for j in range(table.shape[1]):
            e = int(table[t, j])
            if low <= e <= high:
                out[t] += float(router[t, j]) * expert(e, x[t].double())
    return out


def plain_expert(gate, up, down, activation):
    def expert(e, row):
        return (activation(row @ gate[e].double()) * (row @ up[e].double())) @ down[e].double()

    return expert


def swiglu_expert(w12, w3, b12, b3, alpha, limit):
    """GPT-OSS: gate and up interleaved, biases, clamps; `w12` `[H, 2I]`, `w3` `[I, H]`."""

    def expert(e, row):
        both = row @ w12[e].double() + b12[e].double()
        gate, up = both[0::2].clamp(max=limit), both[1::2].clamp(-limit, limit)
        return ((up + 1) * gate / (1 + torch.exp(-alpha * gate))) @ w3[e].double() + b3[e].double()

    return expert


def assert_close(got, exact, dtype):
    """Six roundings of the activation dtype, relative to the size of the row."""
    size = exact.abs().amax(dim=-1, keepdim=True)
    assert ((got.double() - exact).abs() <= 6 * torch.finfo(dtype).eps * size + 1e-12).all()


def oriented(matrices, permuted):
    return [m.t().contiguous() if permuted else m for m in matrices]
