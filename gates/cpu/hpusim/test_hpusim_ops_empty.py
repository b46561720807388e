# SPDX-License-Identifier: Apache-2.0
"""Every operator on nothing: no tokens, no blocks, no queries give empty results of the right shape, never an error."""

from __future__ import annotations

import pytest
import torch
from hpusim_ops import hpu, randn
from test_hpusim_ops_small import calls, kernels, overload
from torch._subclasses.fake_tensor import FakeTensorMode

# operator -> (positions of the arguments that carry tokens or blocks, the axis they are counted on)
TOKENS = {
    "block_softmax": ((0, 2), 0),
    "block_softmax_adjustment": ((0, 1, 2), 0),
    "cast_from_fp8": ((0,), 0),
    "cast_to_fp8_v2": ((0,), 0),
    "convert_from_uint4": ((0,), 0),
    "fp8_gemm_v2": ((0,), 0),
    "fp8_gemm_v2.scalar": ((0,), 1),  # its call transposes A
    "fp8_sdpa_recomp_fwd": ((0,), 2),
    "mixture_of_experts": ((0, 1, 2), 0),
    "rms_norm": ((0,), 0),
    "rms_norm_fast": ((0,), 0),
    "rotary_pos_embedding": ((0, 1, 2), 2),
    "sdpa_recomp_fwd": ((0,), 2),
    "softmax_fa2": ((0,), 0),
}


def emptied(name):
    """The operator's call, its tokens left out."""
    args, kwargs = calls()[name]
    positions, axis = TOKENS.get(name) or TOKENS[name.partition(".")[0]]
    return tuple(a.narrow(axis, 0, 0) if i in positions else a for i, a in enumerate(args)), kwargs


def as_tuple(out):
    return out if isinstance(out, (tuple, list)) else (out,)


@pytest.mark.parametrize("name", kernels())
def test_no_tokens(name):
    args, kwargs = emptied(name)
    real = as_tuple(overload(name)(*args, **kwargs))
    assert real[0].numel() == 0
    assert real[0].dim() == as_tuple(overload(name)(*calls()[name][0], **kwargs))[0].dim()
    with FakeTensorMode() as mode:
        fake = overload(name)(*torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args), **kwargs)
    assert [(tuple(t.shape), t.dtype) for t in real] == [(tuple(t.shape), t.dtype) for t in as_tuple(fake)]


@pytest.mark.parametrize("shape", [(4, 0, 6), (4, 8, 0), (0, 8, 4)])
def test_an_fp8_product_of_nothing_is_zeros(shape):
    rows, inner, columns = shape
    a, b = (torch.ones(size).to(torch.float8_e4m3fn) for size in ((rows, inner), (inner, columns)))
    out = torch.ops.hpu.fp8_gemm_v2(
        a, False, b, False, None, torch.float32, torch.ones(rows, 1), torch.ones(columns), None, False
    )
    assert torch.equal(out, torch.zeros(rows, columns))


def test_an_empty_expert_range_holds_nothing():
    """A card that was given no expert: an empty list and a range that ends before it begins."""
    x, table = randn((3, 8), 1, torch.bfloat16), torch.tensor([[0, -1], [2, 1], [-1, -1]])
    router = torch.ones(3, 2, dtype=torch.bfloat16)
    assert (hpu.mixture_of_experts(x, table, router, [], [], [], True, "silu", 2, 1) == 0).all()
    with pytest.raises(RuntimeError, match=r"experts 2\.\.0 is no range"):
        hpu.mixture_of_experts(x, table, router, [], [], [], True, "silu", 2, 0)


def test_padding_routes_are_nobody_s():
    """-1 in the routing table stands for no expert, also on the card that holds the first ones."""
    x, router = randn((3, 8), 1, torch.bfloat16), torch.ones(3, 2, dtype=torch.bfloat16)
    weight = randn((8, 8), 2, torch.bfloat16)
    tail = ([weight], [weight], [weight], True, "silu", 0, 0)
    padded = hpu.mixture_of_experts(x, torch.tensor([[0, -1], [-1, -1], [-1, 0]]), router, *tail)
    once = hpu.mixture_of_experts(x, torch.zeros(3, 1).long(), router[:, :1], *tail)
    assert torch.equal(padded[[0, 2]], once[[0, 2]])
    assert (padded[1] == 0).all()
    with pytest.raises(RuntimeError, match=r"experts -1\.\.0 is no range"):
        hpu.mixture_of_experts(x, torch.zeros(3, 2).long(), router, *[[weight] * 2] * 3, True, "silu", -1, 0)
