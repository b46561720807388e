# SPDX-License-Identifier: Apache-2.0
"""FP8 arithmetic of the W8A8 reference against exact fp64 arithmetic, and its faults."""

import pytest
import torch

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.oracle import fp8
from gates.oracle.beam.model import BeamReference

BYTES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_halving_is_exact_but_for_odd_subnormals_on_all_256_bytes():
    halved, exact = fp8.halve(BYTES).double(), BYTES.double() * 0.5
    inexact = (halved != exact) & ~exact.isnan()
    assert sorted(BYTES.view(torch.uint8)[inexact].tolist()) == sorted(
        [m | sign for m in range(1, 16, 2) for sign in (0, 0x80)]
    )
    assert halved[~halved.isnan()].abs().max() == 224
    assert fp8.halve(BYTES).view(torch.uint8)[0x7F] == 0x7F
    assert fp8.halve(BYTES).view(torch.uint8)[0x80] == 0x80, "minus zero keeps its sign"


def test_activation_scale_is_taken_in_bf16_and_values_stay_in_range():
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16) * 30
    values, scale = fp8.quantize_tokens(x)
    assert scale.dtype == torch.float32
    assert scale.to(torch.bfloat16).float().equal(scale)
    assert values.float().abs().max() <= 240
    error = (values.float() * scale - x.float()).abs() / x.float().abs().amax(-1, keepdim=True)
    assert error.max() < 1 / 16
    assert (values.float().abs().amax(-1) >= 224).all(), "the range must be used to its end"


def test_zero_token_stays_zero_and_finite():
    values, scale = fp8.quantize_tokens(torch.zeros(2, 8, dtype=torch.bfloat16))
    assert values.float().abs().max() == 0
    assert torch.isfinite(scale).all()


def test_linear_equals_fp64_arithmetic_on_the_same_quantised_values():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(7, 96, generator=generator).to(torch.bfloat16)
    weight = (torch.randn(40, 96, generator=generator) * 60).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(40, 1, generator=generator) / 100 + 1e-4
    halved, doubled = fp8.gaudi2_weight(weight, scale)
    values, token_scale = fp8.quantize_tokens(x)
    exact = (values.double() @ halved.double().T) * token_scale.double() * doubled.double().T
    got = fp8.w8a8_linear(x, halved, doubled, torch.float32)
    assert (got.double() - exact).abs().max() <= 1e-5 * exact.abs().max()
    assert fp8.w8a8_linear(x, halved, doubled).dtype == torch.bfloat16
    forgotten = fp8.w8a8_linear(x, halved, scale, torch.float32)
    assert (forgotten.double() - exact).abs().max() > 0.4 * exact.abs().max(), "a missing doubling must show here"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return beam.write(tmp_path_factory.mktemp("w8a8"), SHAPES["served"], seed=17, fp8=True)


@pytest.fixture(scope="module")
def sample():
    return torch.randint(340, (65,), generator=torch.Generator().manual_seed(9))


def test_w8a8_lies_near_fp32_of_the_same_checkpoint(quantized, sample):
    exact, got = BeamReference(quantized, "fp32")(sample), BeamReference(quantized, "w8a8")(sample)
    kl = (exact.softmax(-1) * (exact.log_softmax(-1) - got.log_softmax(-1))).sum(-1)
    print(f"W8A8 floor on the small net: mean KL {kl.mean():.4f}, mean |dlogit| {(exact - got).abs().mean():.4f}")
    assert 0 < kl.mean() < 0.5


def test_slicing_the_experts_changes_only_the_intermediate_quantisation(quantized, sample):
    seen = [{}, {}]
    for slices, record in zip((1, 2), seen, strict=True):
        BeamReference(quantized, "w8a8", expert_slices=slices, trace=record.__setitem__)(sample)
    assert seen[0]["layers.3.expert_ids"].equal(seen[1]["layers.3.expert_ids"])
    whole, sliced = seen[0]["layers.3.experts"].float(), seen[1]["layers.3.experts"].float()
    difference = (whole - sliced).abs().max() / whole.abs().max()
    assert 0 < difference < 0.05


@pytest.mark.parametrize("layout", [{"packed": True}, {"scale_dtype": torch.bfloat16}, {"bf16_experts": True}])
def test_every_fp8_layout_is_read(tmp_path, quantized, sample, layout):
    other = beam.write(tmp_path, SHAPES["served"], seed=17, fp8=True, **layout)
    expected, got = BeamReference(quantized, "w8a8")(sample), BeamReference(other, "w8a8")(sample)
    if "packed" in layout:
        assert got.equal(expected)
    else:
        assert (got - expected).abs().mean() < 0.5
