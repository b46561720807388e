# SPDX-License-Identifier: Apache-2.0
"""Rounding by integer arithmetic against the cast, bit for bit."""

import pytest
import torch

from vllm_gaudi.models.beam.rounding import Rounding, round_to_bf16


def same_bits(patterns: torch.Tensor) -> bool:
    """Whether fp32 bit `patterns` (int32) round as `.to(bfloat16)` does, NaN to the same bits too."""
    values = patterns.view(torch.float32)
    rounded = round_to_bf16(values).to(torch.bfloat16).view(torch.int16)
    return rounded.equal(values.to(torch.bfloat16).view(torch.int16))


def lossless(patterns: torch.Tensor) -> bool:
    """Whether the result needs no further rounding: its low 16 bits are clear (NaN aside)."""
    values = round_to_bf16(patterns.view(torch.float32))
    return bool(((values.view(torch.int32) & 0xFFFF == 0) | values.isnan()).all())


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor([v - (1 << 32) if v >= 1 << 31 else v for v in values], dtype=torch.int32)


LOW = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]  # below, at and above the tie


def test_every_upper_half_at_the_tie_and_its_neighbours():
    """All 65,536 signs, exponents and kept mantissas x six lower halves: zeros, denormals, infinities, NaN."""
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    for low in LOW:
        patterns = upper | low
        assert same_bits(patterns)
        assert lossless(patterns)


def test_named_boundaries():
    cases = {
        0x3F808000: 0x3F80,  # tie to even, down
        0x3F818000: 0x3F82,  # tie to even, up
        0x7F7F8000: 0x7F80,  # largest finite rounds to infinity
        0x7F7F7FFF: 0x7F7F,
        0x00008000: 0x0000,  # denormal tie
        0x00018000: 0x0002,
        0x80000001: 0x8000,  # minus zero keeps its sign
        0xFF800000: 0xFF80,
    }
    patterns = int32(list(cases))
    got = round_to_bf16(patterns.view(torch.float32)).to(torch.bfloat16).view(torch.int16).tolist()
    assert [g & 0xFFFF for g in got] == list(cases.values())
    assert round_to_bf16(torch.tensor([float("nan")])).isnan().all()


def test_a_million_random_patterns():
    generator = torch.Generator().manual_seed(11)
    patterns = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), dtype=torch.int64, generator=generator).to(torch.int32)
    assert same_bits(patterns)


@pytest.mark.long
def test_all_four_billion_patterns():
    """Every fp32 bit pattern."""
    step = 1 << 24
    for start in range(-(1 << 31), 1 << 31, step):
        assert same_bits(torch.arange(start, start + step, dtype=torch.int64).to(torch.int32)), hex(start & 0xFFFFFFFF)


def test_truncation_instead_of_rounding_is_caught():
    """The control: without half a step added, ties and everything above them go wrong."""

    def truncate(x: torch.Tensor) -> torch.Tensor:
        return (x.view(torch.int32) & -0x10000).view(torch.float32)

    values = int32([0x3F808001, 0x3F818000]).view(torch.float32)
    assert not truncate(values).equal(round_to_bf16(values))


@pytest.mark.parametrize("exact", [False, True])
def test_widen_and_narrow_agree_with_casts(exact):
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    rounding = Rounding(exact)
    narrow = rounding.narrow(x, torch.bfloat16)
    assert narrow.equal(x.to(torch.bfloat16))
    assert rounding.widen(narrow).equal(narrow.float())
    assert rounding.narrow(x, torch.float32) is x or rounding.narrow(x, torch.float32).equal(x)


def test_exact_mode_rounds_what_a_compiler_kept_in_fp32():
    """Exact mode applied to an unrounded fp32 value rounds it; the plain mode would let it pass."""

    unrounded = torch.tensor([1.00390625 + 2**-10])
    assert round_to_bf16(unrounded).item() == unrounded.to(torch.bfloat16).item() != unrounded.item()
