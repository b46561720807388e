# SPDX-License-Identifier: Apache-2.0
"""`mixture_of_experts` with FP8 and MXFP4 weights against float64."""

from __future__ import annotations

import pytest
import torch
from hpusim_moe_reference import (
    ACTIVATIONS,
    EXPERTS,
    assert_close,
    oriented,
    plain_expert,
    reference,
    routing,
    swiglu_expert,
)
from hpusim_ops import FP8_LIMIT, fp8, hpu, nearest_e4m3, personality, randn

from gates.hpusim.ops import mxfp4

moe = hpu.mixture_of_experts
HIDDEN, INNER, TOKENS = 24, 20, 9
BF16 = torch.bfloat16


def quantised_weights(seed: int = 0):
    """FP8 gate, up `[H, I]`, down `[I, H]` and their per-channel scales."""
    shapes = ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
    matrices = [[fp8(s, seed + 100 * j + e, 12.0) for e in range(EXPERTS)] for j, s in enumerate(shapes)]
    scales = [[torch.rand(s[1], generator=torch.Generator().manual_seed(seed + j * 7 + e)) * 0.05 + 0.01
               for e in range(EXPERTS)] for j, s in enumerate(shapes)]  # fmt: skip
    return matrices, scales


def r(values: torch.Tensor) -> torch.Tensor:
    """One rounding to bf16 of a float64 value."""
    return values.to(BF16).double()


def fp8_expert(matrices, scales, limit, static=None, requantise=True):
    """float64 expert `(e, FP8 row, row scale)` with the operator's rounding points.

    The row between the projections passes through E4M3, per token or with a static scale, unless told not to.
    """
    gate, up, down = ([w.double() for w in many] for many in matrices)
    gate_s, up_s, down_s = ([s.double() for s in many] for many in scales)

    def expert(e, row, x_scale):
        first = r(r(row @ gate[e]) * r(x_scale * gate_s[e]))
        second = r(r(row @ up[e]) * r(x_scale * up_s[e]))
        hidden = r(r(ACTIVATIONS["silu"](first)) * second)
        if not requantise:
            return r(hidden @ (down[e] * down_s[e]))
        dynamic = r(r(hidden.abs().max() + 1e-8) / limit)
        scale = dynamic if static is None else torch.tensor(float(static[e])).double()
        rows = nearest_e4m3(r(hidden * r(1.0 / scale)), limit)
        return r(r(rows @ down[e]) * r(scale * down_s[e]))

    return expert


def reference_fp8(x, x_scale, table, router, expert, low=0, high=EXPERTS - 1):
    """float64 sum over local routes; `x` `[T, H]` FP8, `x_scale` one value or `[T, 1]`."""
    scales = torch.as_tensor(x_scale).double().flatten().expand(x.shape[0])
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(table.shape[0]):
        for j in range(table.shape[1]):
            if low <= table[t, j] <= high:
                out[t] += float(router[t, j]) * expert(int(table[t, j]), x[t].double(), scales[t])
    return out


def activations(limit: float):
    x = randn((TOKENS, HIDDEN), 11, BF16)
    scale = (x.abs().amax(-1, keepdim=True) + 1e-8) / limit
    return hpu.cast_to_fp8_v2(x, 1.0 / scale, False, False, torch.float8_e4m3fn)[0], scale.float()


def difference(got, exact):
    return ((got.double() - exact).norm() / exact.norm()).item()


def fused(matrices, scales):
    w12 = [
        torch.cat((g.view(torch.uint8), u.view(torch.uint8)), 1).view(g.dtype)
        for g, u in zip(*matrices[:2], strict=True)
    ]
    return w12, [torch.cat(pair) for pair in zip(*scales[:2], strict=True)]


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("low_high", [(0, 4), (1, 3)])
def test_dynamic_overloads_requantise_per_token(hardware, permuted, low_high):
    limit, (low, high) = FP8_LIMIT[hardware], low_high
    x, x_scale = activations(limit)
    table, router = routing(TOKENS, 2, BF16)
    matrices, scales = quantised_weights()
    exact = reference_fp8(x, x_scale, table, router, fp8_expert(matrices, scales, limit), low, high)
    once = fp8_expert(matrices, scales, limit, requantise=False)
    without = reference_fp8(x, x_scale, table, router, once, low, high)
    local = slice(low, high + 1)
    w12, s12 = fused(matrices, scales)
    tail = (permuted, "silu", low, high)
    got = [
        moe.fp8_dynamic(x, table, router, *(oriented(m[local], permuted) for m in matrices), x_scale,
                        *(s[local] for s in scales), *tail),
        moe(hidden_states=x, expert_routing_table=table, router_weights=router, w12=oriented(w12[local], permuted),
            w3=oriented(matrices[2][local], permuted), d_scale_hidden_states=x_scale, d_scale_w12=s12[local],
            d_scale_w3=scales[2][local], permuted_weights=permuted, activation="silu", experts_min=low,
            experts_max=high),
    ]  # fmt: skip
    for result in got:
        assert result.dtype is BF16
        # The reference with the second quantisation is much nearer than the one without: the op does quantise.
        assert difference(result, exact) < 0.004
        assert difference(result, without) > 0.012
        assert (result[((table < low) | (table > high)).all(-1)] == 0).all()


def test_static_overloads_use_the_given_intermediate_scale(hardware):
    limit = FP8_LIMIT[hardware]
    x, _ = activations(limit)
    table, router = routing(TOKENS, 2, BF16)
    matrices, scales = quantised_weights(3)
    static = [torch.tensor(0.02 * (e + 1)) for e in range(EXPERTS)]
    one = torch.tensor(0.017)
    exact = reference_fp8(x, one, table, router, fp8_expert(matrices, scales, limit, static))
    w12, s12 = fused(matrices, scales)
    tail = (False, "silu", 0, EXPERTS - 1)
    for got in (
        moe.fp8(x, table, router, *matrices, one, static, *scales, *tail),
        moe.fp8_fused_weights(x, table, router, w12, matrices[2], one, static, s12, scales[2], *tail),
    ):
        assert difference(got, exact) < 0.004


def test_scalar_overloads_take_floats(hardware):
    limit = FP8_LIMIT[hardware]
    x, _ = activations(limit)
    table, router = routing(TOKENS, 2, BF16)
    matrices, _ = quantised_weights(5)
    numbers = [[0.01 * (e + 1) for e in range(EXPERTS)], [0.02] * EXPERTS, [0.03] * EXPERTS]
    numbers[1] = numbers[0]
    scales = [[torch.tensor(v) for v in many] for many in numbers]
    static = [0.05] * EXPERTS
    w12, _ = fused(matrices, [[s.reshape(1) for s in many] for many in scales])
    tail = (False, "silu", 0, EXPERTS - 1)
    wanted = reference_fp8(x, 0.02, table, router, fp8_expert(matrices, scales, limit, static))
    dynamic = reference_fp8(x, 0.02, table, router, fp8_expert(matrices, scales, limit))
    two = (numbers[0], numbers[2])
    cases = [
        (moe.fp8_scalars(x, table, router, *matrices, 0.02, static, *numbers, *tail), wanted),
        (moe.fp8_fused_weights_scalars(x, table, router, w12, matrices[2], 0.02, static, *two, *tail), wanted),
        (moe.fp8_scalars_dynamic(x, table, router, *matrices, 0.02, *numbers, *tail), dynamic),
        (moe.fp8_fused_weights_scalars_dynamic(x, table, router, w12, matrices[2], 0.02, *two, *tail), dynamic),
    ]
    for got, exact in cases:
        assert difference(got, exact) < 0.004


def test_bias_fp8(hardware):
    limit = FP8_LIMIT[hardware]
    x, x_scale = activations(limit)
    table, router = routing(TOKENS, 2, BF16)
    w12 = [fp8((HIDDEN, 2 * INNER), e, 12.0) for e in range(EXPERTS)]
    w3 = [fp8((INNER, HIDDEN), 40 + e, 12.0) for e in range(EXPERTS)]
    s12, s3 = ([torch.rand(n) * 0.05 + 0.01 for _ in range(EXPERTS)] for n in (2 * INNER, HIDDEN))
    b12, b3 = ([randn((n,), 80 + e, BF16) for e in range(EXPERTS)] for n in (2 * INNER, HIDDEN))
    static = [torch.tensor(0.1)] * EXPERTS
    got = moe.bias_fp8_fused_weights(
        x, table, router, w12, w3, b12, b3, x_scale, static, s12, s3, False, 0, EXPERTS - 1, alpha=1.1, limit=3.0
    )
    real12, real3 = ([w.double() * s.double() for w, s in zip(*pair, strict=True)] for pair in ((w12, s12), (w3, s3)))
    exact = reference(x.double() * x_scale.double(), table, router, swiglu_expert(real12, real3, b12, b3, 1.1, 3.0))
    assert difference(got, exact) < 0.05  # one E4M3 rounding of the intermediate row is in `got` only


@pytest.mark.parametrize("block", [8, 16])
def test_blockwise_weights_are_dequantised(hardware, block):
    x = randn((TOKENS, HIDDEN), 12, BF16)
    table, router = routing(TOKENS, 2, BF16)
    matrices, _ = quantised_weights(9)
    scales = [[(torch.rand(-(-w.shape[0] // block), -(-w.shape[1] // block)) * 0.1).to(BF16) for w in many]
              for many in matrices]  # fmt: skip

    def real(weight, scale):
        full = torch.kron(scale.double(), torch.ones(block, block, dtype=torch.float64))
        return weight.double() * full[: weight.shape[0], : weight.shape[1]]

    dense = [[real(w, s) for w, s in zip(*pair, strict=True)] for pair in zip(matrices, scales, strict=True)]
    exact = reference(x, table, router, plain_expert(*dense, ACTIVATIONS["silu"]))
    got = moe.fp8_blockwise(x, table, router, *matrices, *scales, block, False, "silu", 0, EXPERTS - 1)
    assert difference(got, exact) < 0.012
    w12, _ = fused([oriented(m, True) for m in matrices[:2]] + [[]], [[torch.ones(1)] * EXPERTS] * 2)
    w12 = [torch.cat((g.t().contiguous().view(torch.uint8), u.t().contiguous().view(torch.uint8))).view(g.dtype)
           for g, u in zip(*matrices[:2], strict=True)]  # fmt: skip
    if INNER % block == 0:
        s12 = [torch.cat((g.t(), u.t())) for g, u in zip(*scales[:2], strict=True)]
        got = moe.fp8_fused_weights_blockwise(
            x, table, router, w12, oriented(matrices[2], True), s12, [s.t() for s in scales[2]], block, True, "silu",
            0, EXPERTS - 1,
        )  # fmt: skip
        assert difference(got, exact) < 0.012


def test_unrescaled_weight_poisons_its_rows_on_gaudi2_only():
    x, x_scale = activations(200.0)
    table, router = routing(TOKENS, 2, BF16)
    matrices, scales = quantised_weights()
    bad = matrices[0][0].view(torch.uint8).clone()
    bad[0, 0] = 0x7E  # 448: beyond the range of Gaudi 2
    matrices[0][0] = bad.view(torch.float8_e4m3fn)
    for name, poisoned in (("gaudi2", True), ("gaudi3", False)):
        with personality(name):
            got = moe.fp8_dynamic(x, table, router, *matrices, x_scale, *scales, False, "silu", 0, EXPERTS - 1)
        hit = (table == 0).any(-1)
        assert got[hit].isnan().any(-1).all() == poisoned
        assert not got[~hit].isnan().any()


def test_fp8_needs_fp8_activations_and_one_scale_per_token():
    matrices, scales = quantised_weights()
    table, router = routing(TOKENS, 2, BF16)
    tail = (False, "silu", 0, EXPERTS - 1)
    with pytest.raises(RuntimeError, match=r"hidden_states are torch\.bfloat16"):
        moe.fp8_dynamic(randn((TOKENS, HIDDEN), 1, BF16), table, router, *matrices, torch.ones(1), *scales, *tail)
    with pytest.raises(
        RuntimeError, match=r"d_scale_hidden_states \(3, 1\) is neither one value nor one for each of 9"
    ):
        moe.fp8_dynamic(fp8((TOKENS, HIDDEN), 1), table, router, *matrices, torch.ones(3, 1), *scales, *tail)
    w12, s12 = fused(matrices, scales)
    short = [scale[: INNER // 2] for scale in s12]
    with pytest.raises(RuntimeError, match=f"d_scale_w12 holds {INNER // 2} values, expected one or {2 * INNER}"):
        moe.fp8_fused_weights_dynamic(
            fp8((TOKENS, HIDDEN), 1), table, router, w12, matrices[2], torch.ones(1), short, scales[2], *tail
        )


# --- MXFP4 ---------------------------------------------------------------------------------------------------------


def fp4_value(code: int) -> float:
    """E2M1 by definition: sign, exponent bias 1, one mantissa bit, subnormal 0.5."""
    sign, exponent, mantissa = -1.0 if code & 8 else 1.0, code >> 1 & 3, code & 1
    return sign * (mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def fp4_dense(packed, scale, block, columns):
    """float64 `[rows, columns]` by definition of the format."""
    table = torch.tensor([fp4_value(code) for code in range(16)], dtype=torch.float64)
    column = torch.arange(columns)
    byte = packed[:, column // 2].long()
    codes = torch.where(column % 2 == 1, byte // 16, byte % 16)
    return table[codes] * 2.0 ** (scale[:, column // block].double() - 127)


def test_every_code_and_scale_unpacks_exactly():
    codes = torch.arange(16, dtype=torch.uint8)
    packed = (codes | codes << 4).repeat_interleave(16).reshape(1, 256).repeat(255, 1)
    scale = torch.arange(255, dtype=torch.uint8).reshape(255, 1).repeat(1, 16)
    got = mxfp4.unpack(packed, scale, 32)
    want = torch.tensor([[fp4_value(c) * 2.0 ** (s - 127) for c in range(16)] for s in range(255)], dtype=torch.float64)
    assert torch.equal(got[:, ::32].double(), want.to(BF16).double())
    assert mxfp4.unpack(packed[:1], torch.full((1, 16), 255, dtype=torch.uint8), 32).isnan().all()


def test_nibble_order_and_block_edges():
    packed = torch.full((1, 32), 0x21, dtype=torch.uint8)
    scale = torch.tensor([[127, 130]], dtype=torch.uint8)
    row = mxfp4.unpack(packed, scale, 32)[0]
    assert row[:2].tolist() == [0.5, 1.0]
    assert row[30:34].tolist() == [0.5, 1.0, 4.0, 8.0]
    assert mxfp4.unpack(packed, scale, 32, 49).shape == (1, 49)
    with pytest.raises(RuntimeError, match="do not hold 65 columns"):
        mxfp4.unpack(packed, scale, 32, 65)
    with pytest.raises(RuntimeError, match="must be a uint8 matrix"):
        mxfp4.unpack(packed.int(), scale, 32)


def packed_weights(rows: int, columns: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, (rows, -(-columns // 2)), generator=generator, dtype=torch.uint8)
    scale = torch.randint(121, 126, (rows, -(-columns // 32)), generator=generator, dtype=torch.uint8)
    return weight, scale


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize(("hidden", "inner"), [(64, 32), (96, 64)])
@pytest.mark.parametrize("low_high", [(0, 4), (2, 3)])
def test_mxfp4_overloads(permuted, hidden, inner, low_high):
    low, high = low_high
    x = randn((7, hidden), 21, BF16)
    table, router = routing(7, 2, BF16, torch.int32)
    local = range(low, high + 1)
    # Stored orientation: [out, in] when permuted, [in, out] otherwise; packed along the last axis either way.
    shapes = [(inner, hidden), (inner, hidden), (hidden, inner)]
    stored = [s if permuted else s[::-1] for s in shapes]
    parts = {j: {e: packed_weights(*stored[j], 10 * j + e) for e in local} for j in range(3)}
    dense = [{e: fp4_dense(*parts[j][e], 32, stored[j][1]) for e in local} for j in range(3)]
    dense = [{e: m.t() if permuted else m for e, m in many.items()} for many in dense]
    exact = reference(x, table, router, plain_expert(*dense, ACTIVATIONS["silu"]), low, high)
    w, s = ([[parts[j][e][i] for e in local] for j in range(3)] for i in range(2))
    tail = {"block_size": 32, "permuted_weights": permuted, "experts_min": low, "experts_max": high, "is_fp4": True}
    got = moe.mxfp4(x, table, router, *w, *s, activation="silu", **tail)
    assert_close(got, exact, BF16)
    axis = 0 if permuted else 1
    w12, s12 = ([torch.cat(pair, axis) for pair in zip(*many[:2], strict=True)] for many in (w, s))
    got = moe.mxfp4_fused_weights(x, table, router, w12, w[2], s12, s[2], activation="silu", **tail)
    assert_close(got, exact, BF16)
    assert (got[((table < low) | (table > high)).all(-1)] == 0).all()
    b12, b3 = ([randn((n,), 30 + e, BF16) for e in local] for n in (2 * inner, hidden))
    both = {e: torch.cat((dense[0][e], dense[1][e]), 1) for e in local}
    biases = ({e: b[e - low] for e in local} for b in (b12, b3))
    exact = reference(x, table, router, swiglu_expert(both, dense[2], *biases, 1.702, 7.0), low, high)
    got = moe.bias_mxfp4_fused_weights(x, table, router, w12, w[2], b12, b3, s12, s[2], **tail)
    assert difference(got, exact) < 0.012


def test_mxfp4_slices_of_the_inner_axis_add_up():
    """Gate and up rows and down columns cut in four: what four cards compute adds up to the whole."""
    hidden, inner = 64, 128
    x = randn((5, hidden), 4, BF16)
    table, router = torch.zeros(5, 1, dtype=torch.int32), torch.ones(5, 1, dtype=BF16)
    (gate, gate_s), (up, up_s) = packed_weights(inner, hidden, 1), packed_weights(inner, hidden, 2)
    down, down_s = packed_weights(hidden, inner, 3)
    tail = (32, True, "silu", 0, 0)
    whole = moe.mxfp4_fused_weights(
        x, table, router, [torch.cat((gate, up))], [down], [torch.cat((gate_s, up_s))], [down_s], *tail
    )
    total = torch.zeros(5, hidden, dtype=torch.float64)
    for t in range(4):
        rows, bytes_, blocks = slice(32 * t, 32 * t + 32), slice(16 * t, 16 * t + 16), slice(t, t + 1)
        total += moe.mxfp4_fused_weights(
            x, table, router, [torch.cat((gate[rows], up[rows]))], [down[:, bytes_].contiguous()],
            [torch.cat((gate_s[rows], up_s[rows]))], [down_s[:, blocks].contiguous()], *tail,
        ).double()  # fmt: skip
    assert difference(total, whole.double()) < 0.01
