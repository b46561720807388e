# SPDX-License-Identifier: Apache-2.0
"""FusedSDPA and its FP8 twin against float64 attention, position by position."""

from __future__ import annotations

import pytest
import torch
from hpusim_ops import FLOATS, FP8_LIMIT, hpu, nearest_e4m3, randn

from gates.hpusim.ops.define import NotEmulatedError
from gates.hpusim.ops.sdpa import FusedSDPA, fp8_fused_sdpa, gqa_input_reshape_fwd, gqa_output_reshape, is_gqa

HEADS = [(4, 4), (4, 2), (6, 1)]  # all heads, grouped, one kv head


def inputs(batch=2, heads=(4, 2), queries=7, keys=7, dim=16, dtype=torch.bfloat16, value_dim=None):
    q = randn((batch, heads[0], queries, dim), 1, dtype)
    k = randn((batch, heads[1], keys, dim), 2, dtype)
    return q, k, randn((batch, heads[1], keys, value_dim or dim), 3, dtype)


def reference(q, k, v, keep=None, bias=None, scale=None, sinks=None):
    """float64; `keep` boolean `[B, T, S]`, `bias` broadcastable to `[B, H, T, S]`; rows without a key are zero."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(groups, 1) for t in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if keep is not None:
        scores = scores.masked_fill(~keep.unsqueeze(1), -torch.inf)
    if sinks is not None:
        column = sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights[..., : k.shape[-2]] @ v


def keep_mask(batch, queries, keys, rule):
    return torch.tensor([[[rule(b, i, j) for j in range(keys)] for i in range(queries)] for b in range(batch)])


def assert_near(got, exact, dtype):
    assert got.shape == exact.shape
    assert got.dtype is dtype
    assert ((got.double() - exact).abs() <= 3 * torch.finfo(dtype).eps * exact.abs().max() + 1e-6).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 11), (1, 130), (33, 1)])
def test_without_a_mask(dtype, heads, queries, keys):
    q, k, v = inputs(heads=heads, queries=queries, keys=keys, dtype=dtype, value_dim=24)
    assert_near(FusedSDPA.apply(q, k, v), reference(q, k, v), dtype)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("mode", ["None", "fast", "fp32"])
def test_causal_with_valid_lengths(heads, mode):
    q, k, v = inputs(heads=heads)
    lengths = torch.tensor([7, 3], dtype=torch.int32)
    for side in ("right", "left"):
        first = {"right": [0, 0], "left": [0, 4]}[side]
        last = {"right": [7, 3], "left": [7, 7]}[side]
        keep = keep_mask(2, 7, 7, lambda b, i, j, first=first, last=last: first[b] <= j < last[b] and j <= i)
        got = FusedSDPA.apply(q, k, v, None, 0.0, True, None, mode, True, lengths, side)
        assert_near(got, reference(q, k, v, keep), torch.bfloat16)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("boolean", [False, True])
def test_explicit_masks(heads, per_head, boolean):
    q, k, v = inputs(heads=heads, queries=5, keys=9)
    shape = (2, heads[0] if per_head else 1, 5, 9)
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    allowed[..., 0] = True
    bias = torch.zeros(shape).masked_fill(~allowed, -torch.inf) + (0 if boolean else randn(shape, 4))
    mask = allowed if boolean else bias.bfloat16()
    exact = reference(q, k, v, bias=bias if boolean else mask)
    scaled = reference(q, k, v, bias=bias if boolean else mask, scale=0.3)
    assert_near(FusedSDPA.apply(q, k, v, mask, 0.0, False, 0.3), scaled, torch.bfloat16)
    assert_near(FusedSDPA.apply(q, k, v, mask), exact, torch.bfloat16)


@pytest.mark.parametrize(("convention", "extra"), [("self_included", 0), ("self_excluded", 1)])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 12)])
@pytest.mark.parametrize("window", [(3, 0), (1, 0), (2, 1), (-1, 0), (-1, -1)])
def test_window_follows_the_named_setting(monkeypatch, convention, extra, queries, keys, window):
    monkeypatch.setenv("HPUSIM_FSDPA_WINDOW", convention)
    q, k, v = inputs(queries=queries, keys=keys)
    left, right = window

    def rule(b, i, j):
        distance = i + keys - queries - j
        return (left < 0 or distance < left + extra) and (right < 0 or distance >= -right)

    got = FusedSDPA.apply(q, k, v, None, 0.0, False, None, "fast", True, None, "right", False, False, window)
    assert_near(got, reference(q, k, v, keep_mask(2, queries, keys, rule)), torch.bfloat16)


def test_window_setting_is_checked(monkeypatch):
    monkeypatch.setenv("HPUSIM_FSDPA_WINDOW", "maybe")
    q, k, v = inputs()
    with pytest.raises(ValueError, match="HPUSIM_FSDPA_WINDOW='maybe': expected one of self_included, self_excluded"):
        FusedSDPA.apply(q, k, v, None, 0.0, True, None, "fast", True, None, "right", False, False, (3, 0))


@pytest.mark.parametrize("heads", HEADS)
def test_sinks_take_weight_but_no_value(heads):
    q, k, v = inputs(heads=heads)
    sinks = randn((heads[0],), 9, torch.bfloat16) * 3
    got = FusedSDPA.apply(q, k, v, None, 0.0, True, None, "fast", True, None, "right", False, False, (-1, -1), sinks)
    causal = keep_mask(2, 7, 7, lambda b, i, j: j <= i)
    assert_near(got, reference(q, k, v, causal, sinks=sinks), torch.bfloat16)
    with pytest.raises(RuntimeError, match="do not hold one logit for each of"):
        FusedSDPA.apply(q, k, v, sinks=sinks[:-1])


@pytest.mark.parametrize("mode", ["fast", "fp32"])
def test_chunks_merge_by_their_statistics(mode):
    """Online softmax over two halves of the keys, as the sliced attention of the plug-in merges them."""
    q, k, v = inputs(heads=(4, 4), queries=5, keys=12, dtype=torch.float32)
    whole = hpu.sdpa_recomp_fwd(q, k, v, None, 0.0, 0.25, False, True, mode, None, "right")[0]
    halves = [
        hpu.sdpa_recomp_fwd(q, k[:, :, s], v[:, :, s], None, 0.0, 0.25, False, True, mode, None, "right")
        for s in (slice(0, 5), slice(5, 12))
    ]
    maximum = torch.maximum(halves[0][1], halves[1][1])
    sums = [torch.exp(m - maximum) / linv for _, m, linv, _ in halves]
    merged = sum(total * half[0] for total, half in zip(sums, halves, strict=True)) / sum(sums)
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-6)
    assert halves[0][1].shape == (2, 4, 5, 1)


def test_grouped_reshapes_are_inverse():
    q, k, v = inputs(heads=(6, 2))
    mask = torch.zeros(2, 1, 7, 7)
    assert is_gqa(q, k)
    assert not is_gqa(q, k[:, :1])
    gq, gk, gv, gm = gqa_input_reshape_fwd(q, k, v, mask)
    assert (gq.shape, gk.shape, gv.shape, gm.shape) == (
        (2, 2, 3, 7, 16), (2, 2, 1, 7, 16), (2, 2, 1, 7, 16), (2, 1, 1, 7, 7),
    )  # fmt: skip
    assert torch.equal(gqa_output_reshape(gq), q)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("out_scale", [None, 2.0])
@pytest.mark.parametrize("mode", ["fast", "fp32"])
def test_fp8_attention(hardware, heads, out_scale, mode):
    limit = FP8_LIMIT[hardware]
    q, k, v = (t.clamp(-4, 4).to(torch.float8_e4m3fn) for t in inputs(heads=heads, dtype=torch.float32))
    scales = [torch.tensor(s) for s in (0.5, 0.7, 1.5)]
    q_scale_s, d_scale_s = torch.tensor(128.0), torch.tensor(1 / 128)
    out, amax_s, amax_o = fp8_fused_sdpa(
        q, k, v, is_causal=True, softmax_mode=mode, d_scale_q=scales[0], d_scale_k=scales[1], d_scale_v=scales[2],
        q_scale_s=q_scale_s, q_scale_o=out_scale and torch.tensor(out_scale), d_scale_s=d_scale_s, is_amax_s=True,
        recompute=True,
    )  # fmt: skip
    groups = heads[0] // heads[1]
    kd, vd = (t.double().repeat_interleave(groups, 1) for t in (k, v))
    scores = q.double() @ kd.transpose(-1, -2) * (0.25 * 0.5 * float(scales[1]))
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    rounded = nearest_e4m3(exponentials * 128, limit) / 128
    exact = rounded @ (vd * 1.5) / exponentials.sum(-1, keepdim=True)
    if out_scale is None:
        assert_near(out, exact, torch.bfloat16)
    else:
        assert out.dtype is torch.float8_e4m3fn
        wanted = nearest_e4m3((exact * out_scale), limit)
        assert (out.double() - wanted).abs().max() <= 2.0**-3 * wanted.abs().max()
        assert (out.double() == wanted).double().mean() > 0.99
    assert amax_s == 1.0
    assert amax_o.shape == (0,)


def test_fast_fp8_statistics_carry_the_divisor():
    q, k, v = (t.to(torch.float8_e4m3fn) for t in inputs(heads=(2, 2), dtype=torch.float32))
    one = torch.tensor(1.0)

    def linv(mode):
        return hpu.fp8_sdpa_recomp_fwd(
            q, k, v, None, 0.0, 1.0, False, True, mode, one, one, one, one, None, one, False, False, None, "right",
            (-1, -1), None,
        )[2]  # fmt: skip

    torch.testing.assert_close(linv("fast") * 128.0, linv("fp32"))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"dropout_p": 0.1}, NotEmulatedError, "dropout_p=0.1 is not emulated"),
        ({"softmax_mode": "slow"}, NotEmulatedError, "softmax_mode 'slow'"),
        ({"return_attn_probs": True}, NotEmulatedError, "return_attn_probs"),
        ({"valid_seq_len": torch.tensor([1, 2])}, AssertionError, "only with is_causal=True"),
        ({"is_causal": True, "valid_seq_len": torch.tensor([1, 2]), "seq_padding_type": "up"}, RuntimeError, "'up'"),
    ],
)
def test_refusals(kwargs, error, message):
    q, k, v = inputs()
    with pytest.raises(error, match=message):
        FusedSDPA.apply(q, k, v, **kwargs)


@pytest.mark.parametrize(
    ("heads", "shape", "error", "message"),
    [
        # On the grouped path these would broadcast over the wrong axis and give numbers.
        ((4, 2), (7, 7), NotEmulatedError, r"a mask of shape \(7, 7\) for 4 query heads on 2 key heads"),
        ((4, 2), (2, 2, 7, 7), NotEmulatedError, r"must be \[B, 1 or heads, T, S\]"),
        ((5, 2), (2, 1, 7, 7), RuntimeError, "5 query heads do not divide among 2 key heads"),
    ],
)
def test_what_does_not_fit_the_groups_is_refused(heads, shape, error, message):
    q, k, v = inputs(heads=heads)
    with pytest.raises(error, match=message):
        FusedSDPA.apply(q, k, v, torch.zeros(shape))


def test_causal_needs_equal_lengths():
    q, k, v = inputs(queries=3, keys=7)
    with pytest.raises(NotEmulatedError, match="is_causal with 3 queries and 7 keys"):
        FusedSDPA.apply(q, k, v, is_causal=True)


def test_variant_without_recomputation_says_so():
    q, k, v = inputs()
    with pytest.raises(NotEmulatedError, match=r"torch\.ops\.hpu\.sdpa_fwd is not emulated"):
        hpu.sdpa_fwd(q, k, v, None, 0.0, 1.0, False, "fast", None, "left")
