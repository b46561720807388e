# SPDX-License-Identifier: Apache-2.0
"""Guard of the moe-overload patch: no tensor is printed on the way to the expert operator."""

from __future__ import annotations

import pytest
import torch

EXPERTS, HIDDEN, INNER, TOKENS = 4, 32, 16, 5


@pytest.fixture
def experts():
    from vllm_gaudi.extension.ops import VllmMixtureOfExpertsOpFP8PerChannel

    op = VllmMixtureOfExpertsOpFP8PerChannel(EXPERTS, EXPERTS, 0, EXPERTS - 1)
    generator = torch.Generator().manual_seed(0)
    for i in range(EXPERTS):
        for holder, rows, columns in ((op.w13_list[i], 2 * INNER, HIDDEN), (op.w2_list[i], HIDDEN, INNER)):
            holder.set_weight(torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn).to("hpu"))
            holder.set_scale_inv_fp8(torch.rand(rows, generator=generator).add(0.1).to(torch.bfloat16).to("hpu"))
    op._cache_weight_lists()
    x = torch.randn(TOKENS, HIDDEN, generator=generator).to(torch.bfloat16).to("hpu")
    ids = torch.randint(0, EXPERTS, (TOKENS, 2), generator=generator).to("hpu")
    weights = torch.rand(TOKENS, 2, generator=generator).to("hpu")
    return lambda: op(x, ids, weights, permuted_weights=True, activation="silu")


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list:
    """One entry per tensor turned into text."""
    calls: list = []
    real = torch.Tensor.__repr__
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self, **k: calls.append(1) or real(self, **k))
    return calls


class _Packet:
    """The operator's overload packet, noting every call that leaves the choice of the overload to it."""

    def __init__(self, packet) -> None:
        self._packet, self.calls = packet, 0

    def __getattr__(self, name: str):
        return getattr(self._packet, name)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self._packet(*args, **kwargs)


def test_overload_is_named(experts, settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_gaudi.runtime import moe_overload

    packet = _Packet(torch.ops.hpu.mixture_of_experts)
    monkeypatch.setattr(torch.ops.hpu, "mixture_of_experts", packet)
    moe_overload._resolve.cache_clear()
    settings(MOE_OVERLOAD="on")
    result = experts()
    assert packet.calls == 0
    settings(MOE_OVERLOAD="off")
    assert torch.equal(result.cpu(), experts().cpu())
    assert packet.calls == 1
    moe_overload._resolve.cache_clear()


def test_what_the_packet_costs(printed) -> None:
    """An overload that fails on an argument's type prints the argument; the named overload prints nothing."""
    with torch.library._scoped_library("overload_cost", "FRAGMENT") as library:
        library.define("mix.a(Tensor x, int scale) -> Tensor")
        library.define("mix.b(Tensor x, Tensor scale) -> Tensor")
        library.impl("mix.b", lambda x, scale: x * scale, "CompositeExplicitAutograd")
        packet, x = torch.ops.overload_cost.mix, torch.ones(2)
        packet(x=x, scale=x)
        assert printed
        printed.clear()
        packet.b(x=x, scale=x)
        assert not printed


def test_falls_back_without_a_match(experts, settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_gaudi.runtime import moe_overload

    settings(MOE_OVERLOAD="on")
    expected = experts().cpu()
    monkeypatch.setattr(moe_overload, "_resolve", lambda call: None)
    assert torch.equal(experts().cpu(), expected)


def test_only_an_exact_match_is_taken() -> None:
    from vllm_gaudi.runtime.moe_overload import matching

    tensors = {"x": "Tensor", "w": "Tensor"}
    with torch.library._scoped_library("overload_test", "FRAGMENT") as library:
        library.define("mix.a(Tensor x, Tensor w) -> Tensor")
        library.define("mix.b(Tensor x, Tensor w, Tensor[] scale, int top=0) -> Tensor")
        library.define("mix.c(Tensor x, Tensor w, float[] scale, int top=0) -> Tensor")
        packet = torch.ops.overload_test.mix
        assert matching(packet, {**tensors, "scale": "List[Tensor]"}) is packet.b
        assert matching(packet, {**tensors, "scale": "List[float]", "top": "int"}) is packet.c
        assert matching(packet, tensors) is packet.a
        assert matching(packet, {**tensors, "bias": "Tensor"}) is None
        library.define("mix.d(Tensor x, Tensor w, int rows=0) -> Tensor")
        assert matching(packet, tensors) is None, "two candidates are left to the packet"
