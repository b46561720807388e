# SPDX-License-Identifier: Apache-2.0
"""MXFP4 decoding: every code with every scale against float64, and the format's pinned places."""

import pytest
import torch

from gates.checkpoints.muse import quantize
from gates.oracle import mxfp4

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES += [-value for value in VALUES]


def products() -> torch.Tensor:
    """fp32 [256 scales, 16 codes] as decoded."""
    packed = torch.tensor([low | (low + 1) << 4 for low in range(0, 16, 2)] * 2, dtype=torch.uint8).expand(256, 16)
    scale = torch.arange(256, dtype=torch.uint8)[:, None]
    return mxfp4.dequantize(packed.contiguous(), scale)[:, :16]


def exact() -> torch.Tensor:
    """float64 [256, 16] from integers alone."""
    powers = torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")], dtype=torch.float64)
    return powers[:, None] * torch.tensor(VALUES, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_codes_and_scales_against_float64(dtype):
    got, want = products().to(dtype), exact()
    same = (got.double() == want) | (got.isnan() & want.isnan())
    assert same[:253].all()
    assert same[255].all()
    wrong = [(253 + row, abs(VALUES[code])) for row, code in (~same[253:255]).nonzero().tolist()]
    assert sorted(set(wrong)) == [(253, 4), (253, 6), (254, 2), (254, 3), (254, 4), (254, 6)]
    assert got[253:255][~same[253:255]].isinf().all()


def test_subnormal_products_are_those_a_flushing_device_would_lose():
    got = products()
    tiny = (got != 0) & (got.abs() < torch.finfo(torch.float32).tiny)
    assert {(row, abs(VALUES[code])) for row, code in tiny.nonzero().tolist()} == {(0, 0.5), (0, 1), (0, 1.5), (1, 0.5)}


def test_low_nibble_is_the_even_column_and_groups_end_at_32():
    packed = torch.full((1, 32), 0x21, dtype=torch.uint8)
    row = mxfp4.dequantize(packed, torch.tensor([[127, 128]], dtype=torch.uint8))[0]
    assert row[:2].tolist() == [0.5, 1.0]
    assert row[30:34].tolist() == [0.5, 1.0, 1.0, 2.0]


def test_minus_zero_keeps_its_sign():
    row = mxfp4.dequantize(torch.full((1, 16), 0x88, dtype=torch.uint8), torch.full((1, 1), 127, dtype=torch.uint8))
    assert torch.signbit(row).all()


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (torch.zeros(2, 16), torch.zeros(2, 1), "must be uint8"),
        (torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8), "do not match"),
        (torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(3, 1, dtype=torch.uint8), "do not match"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(weight, scale, message):
    with pytest.raises(ValueError, match=message):
        mxfp4.dequantize(weight, scale)


def test_the_generator_quantises_to_the_nearest_code_without_clipping():
    values = torch.randn(8, 96, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    values[0, 32:64] = 0
    packed, scale = quantize(values)
    decoded = mxfp4.dequantize(packed, scale)
    steps = torch.tensor(VALUES).unique()
    factor = mxfp4.scales(scale).repeat_interleave(32, dim=-1)
    best = (values.float()[..., None] - steps * factor[..., None]).abs().amin(-1)
    assert (decoded - values.float()).abs().equal(best)
    assert (values.float().abs() <= 6 * factor).all()
    assert decoded[0, 32:64].abs().max() == 0
