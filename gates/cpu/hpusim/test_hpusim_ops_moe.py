# SPDX-License-Identifier: Apache-2.0
"""`mixture_of_experts` without FP8: every overload, route by route against float64."""

from __future__ import annotations

import pytest
import torch
from hpusim_moe_reference import (
    ACTIVATIONS,
    EXPERTS,
    HIDDEN,
    INNER,
    assert_close,
    oriented,
    plain_expert,
    reference,
    routing,
    swiglu_expert,
    weights,
)
from hpusim_ops import FLOATS, hpu, randn, stored

from gates.hpusim.ops.define import NotEmulatedError

moe = hpu.mixture_of_experts


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "k", "permuted"), [(1, 1, True), (17, 2, True), (3, 3, False), (7, 5, True)])
def test_separate_and_fused_weights(dtype, activation, tokens, k, permuted):
    x = randn((tokens, HIDDEN), 7, dtype)
    table, router = routing(tokens, k, dtype)
    gate, up, down = weights(dtype)
    exact = reference(x, table, router, plain_expert(gate, up, down, ACTIVATIONS[activation]))
    tail = (permuted, activation, 0, EXPERTS - 1)
    separate = moe(x, table, router, *(oriented(w, permuted) for w in (gate, up, down)), *tail)
    fused = oriented([torch.cat(pair, dim=1) for pair in zip(gate, up, strict=True)], permuted)
    for got in (separate, moe.fused_weights(x, table, router, fused, oriented(down, permuted), *tail)):
        assert got.dtype is dtype
        assert_close(got, exact, dtype)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("ranges", [[(0, 4)], [(0, 1), (2, 4)], [(0, 0), (1, 1), (2, 2), (3, 4)]])
def test_expert_ranges_add_up_and_leave_exact_zeros(index, ranges):
    x = randn((9, HIDDEN), 3, torch.bfloat16)
    table, router = routing(9, 2, torch.bfloat16, index)
    table[0] = 0
    gate, up, down = weights(torch.bfloat16)
    fused = oriented([torch.cat(pair, dim=1) for pair in zip(gate, up, strict=True)], True)
    downs = oriented(down, True)
    total = torch.zeros(x.shape, dtype=torch.float64)
    for low, high in ranges:
        local = slice(low, high + 1)
        part = moe(
            hidden_states=x, expert_routing_table=table, router_weights=router, w12=fused[local], w3=downs[local],
            permuted_weights=True, activation="silu", experts_min=low, experts_max=high, chunk_size=4, total_experts=5,
        )  # fmt: skip
        outside = ((table < low) | (table > high)).all(dim=-1)
        assert (part[outside] == 0).all()
        assert outside.any() or (low, high) == (0, 4)
        total += part.double()
    exact = reference(x, table, router, plain_expert(gate, up, down, ACTIVATIONS["silu"]))
    assert_close(total, exact, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("alpha", "limit", "permuted"), [(1.702, 7.0, True), (0.5, 0.4, False)])
def test_bias_overload_is_clamped_swiglu(dtype, alpha, limit, permuted):
    x = randn((11, HIDDEN), 5, dtype)
    table, router = routing(11, 2, dtype)
    w12 = [(randn((HIDDEN, 2 * INNER), e) * 0.5).to(dtype) for e in range(EXPERTS)]
    w3 = [(randn((INNER, HIDDEN), 50 + e) * 0.5).to(dtype) for e in range(EXPERTS)]
    b12 = [randn((2 * INNER,), 60 + e, dtype) for e in range(EXPERTS)]
    b3 = [randn((HIDDEN,), 70 + e, dtype) for e in range(EXPERTS)]
    exact = reference(x, table, router, swiglu_expert(w12, w3, b12, b3, alpha, limit))
    got = moe.bias_fused_weights(
        x, table, router, oriented(w12, permuted), oriented(w3, permuted), b12, b3, permuted, 0, EXPERTS - 1,
        alpha=alpha, limit=limit,
    )  # fmt: skip
    size = exact.abs().amax(dim=-1, keepdim=True) + max(b.double().abs().max() for b in b3)
    assert ((got.double() - exact).abs() <= 6 * torch.finfo(dtype).eps * size).all()


def test_one_unit_route_returns_the_raw_row():
    """Rows repeated per route with unit weights: the form in which a norm is applied between expert and weight."""
    x = randn((4, HIDDEN), 8, torch.bfloat16)
    gate, up, down = weights(torch.bfloat16)
    table, _ = routing(4, 2, torch.bfloat16)
    ones = torch.ones(8, 1, dtype=torch.bfloat16)
    got = moe(
        x.repeat_interleave(2, 0), table.reshape(8, 1).int(), ones, gate, up, down, False, "silu", 0, EXPERTS - 1
    )  # fmt: skip
    for row in range(8):
        e, source = int(table.reshape(-1)[row]), x[row // 2].unsqueeze(0)
        hidden = torch.nn.functional.silu(source @ gate[e]) * (source @ up[e])
        assert torch.equal(got[row], (hidden @ down[e])[0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation": "swish"}, NotEmulatedError, "activation 'swish' is not one of the device's: gelu, relu, silu"),
        ({"experts_max": 6}, RuntimeError, "w12 has 5 entries, experts 0..6 need 7"),
        ({"router_weights": torch.rand(3, 2)}, RuntimeError, "router_weights are torch.float32 and hidden_states"),
        ({"expert_routing_table": torch.zeros(3, 2)}, RuntimeError, "must be int32 or int64, got torch.float32"),
        ({"expert_routing_table": torch.zeros(2, 2).long()}, RuntimeError, r"must both be \[3, k\]"),
        ({"hidden_states": torch.rand(1, 3, HIDDEN).bfloat16()}, RuntimeError, r"must be \[tokens, hidden\]"),
        ({"hidden_states": torch.zeros(3, HIDDEN).double()}, NotEmulatedError, "hidden_states are torch.float64"),
        ({"hidden_states": torch.zeros(3, HIDDEN).int()}, NotEmulatedError, "hidden_states are torch.int32"),
    ],
)
def test_refusals_name_the_argument(change, error, message):
    gate, up, down = weights(torch.bfloat16)
    table, router = routing(3, 2, torch.bfloat16)
    fused = oriented([torch.cat(pair, dim=1) for pair in zip(gate, up, strict=True)], True)
    call = {
        "hidden_states": randn((3, HIDDEN), 1, torch.bfloat16), "expert_routing_table": table, "router_weights": router,
        "w12": fused, "w3": oriented(down, True), "permuted_weights": True, "activation": "silu",
        "experts_min": 0, "experts_max": EXPERTS - 1,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        moe.fused_weights(**call | change)


def test_measurement_overloads_say_that_they_are_missing():
    x, table, router = randn((1, 4), 1), torch.zeros(1, 1).long(), torch.ones(1, 1)
    with pytest.raises(NotEmulatedError, match=r"torch\.ops\.hpu\.mixture_of_experts\.fp8_measurement is not emulated"):
        moe.fp8_measurement(x, table, router, [x], [x], [x], True, "silu", 0, 0, True)


def test_stored_unquantised_layer():
    """Upstream's stored output of a 128-expert layer (all experts share one weight) agrees within its tolerance."""
    data = stored("fused_moe/unquantized.safetensors")
    x, logits = data["hidden_states"], data["router_logits"]
    w13, w2 = data["w13_weight"], data["w2_weight"]
    probabilities, table = torch.softmax(logits.float(), dim=-1).topk(8)
    router = (probabilities / probabilities.sum(-1, keepdim=True)).to(x.dtype)
    count = logits.shape[-1]
    first, second = (w.reshape(-1, *w.shape[-2:])[0] for w in (w13, w2))
    got = moe.fused_weights(x, table, router, [first] * count, [second] * count, True, "silu", 0, count - 1)
    torch.testing.assert_close(got, data["ref_output"], atol=1e-3, rtol=1e-3)
