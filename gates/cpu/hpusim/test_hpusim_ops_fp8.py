# SPDX-License-Identifier: Apache-2.0
"""FP8 casts and the scaled GEMM against float64, and against the device outputs upstream stores."""

from __future__ import annotations

import pytest
import torch
from hpusim_ops import FLOATS, FP8_LIMIT, fp8, hpu, nearest_e4m3, personality, randn, stored

from gates.hpusim.ops.define import NotEmulatedError

E4M3 = torch.float8_e4m3fn
SHAPES = [(1, 1, 1), (3, 7, 5), (17, 33, 129), (2, 64, 1)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [None, 0.37, "tensor", "row"])
def test_cast_rounds_the_product_in_the_input_dtype(hardware, dtype, scale):
    x = randn((13, 37), 1, dtype) * torch.logspace(-3, 3, 37).to(dtype)
    factor = {"tensor": torch.tensor(3.3), "row": torch.rand(13, 1) + 0.1}.get(scale, scale)
    got, amax = hpu.cast_to_fp8_v2(x, factor, False, False, E4M3)
    rounded = torch.ones((), dtype=dtype) if factor is None else torch.as_tensor(factor).to(dtype)
    product = (x.double() * rounded.double()).to(dtype).double()
    assert torch.equal(got.double(), nearest_e4m3(product, FP8_LIMIT[hardware]))
    assert got.dtype is E4M3
    assert amax.shape == (0,)


def test_cast_saturates_by_personality_and_keeps_nan(hardware):
    x = torch.tensor([1e4, -1e4, torch.inf, -torch.inf, torch.nan, 250.0, -0.0])
    got = hpu.cast_to_fp8_v2(x, None, False, True, E4M3)[0].float()
    limit = FP8_LIMIT[hardware]
    assert got[:4].tolist() == [limit, -limit, limit, -limit]
    assert got[4].isnan()
    assert got[5] == min(limit, 256.0)


def test_cast_overloads_agree_and_amax_is_of_the_input():
    x = randn((5, 9), 2, torch.bfloat16)
    reference = hpu.cast_to_fp8_v2(x, torch.tensor(0.5), False, False, E4M3)[0]
    for overload, scale in ((hpu.cast_to_fp8_v2.scalar, 0.5), (hpu.cast_to_fp8_v2.scalar_list, [0.5])):
        got, amax = overload(x, scale, False, True, E4M3)
        assert torch.equal(got.float(), reference.float())
        assert amax.shape == ()
        assert amax == x.abs().max().float()


def test_e5m2_keeps_its_own_range(hardware):
    x = torch.tensor([6e4, -1.0, 57344.0])
    assert hpu.cast_to_fp8_v2(x, None, False, False, torch.float8_e5m2)[0].float().tolist() == [57344.0, -1.0, 57344.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [0.25, "tensor", None])
def test_cast_from_fp8(dtype, scale):
    x = fp8((4, 6), 3)
    factor = torch.tensor(1.7) if scale == "tensor" else scale
    got = hpu.cast_from_fp8(x, factor, dtype)
    one = torch.as_tensor(1.0 if factor is None else factor).to(dtype).double()
    assert torch.equal(got, (x.double() * one).to(dtype))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scales", ["none", "tensor", "row-column", "scalar", "scalar_list"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm_against_float64(shape, out, scales, trans_b):
    m, k, n = shape
    a, b = fp8((m, k), 4), fp8((k, n), 5)
    one, many = torch.tensor(0.013), torch.tensor(0.21)
    a_scale, b_scale = {
        "none": (None, None),
        "tensor": (one, many),
        "row-column": (torch.rand(m, 1) * 0.1, torch.rand(1, n)),
        "scalar": (0.013, 0.21),
        "scalar_list": ([0.013], [0.21]),
    }[scales]
    got = hpu.fp8_gemm_v2(a, False, b.t().contiguous() if trans_b else b, trans_b, None, out, a_scale, b_scale)
    wide = [torch.as_tensor(1.0 if s is None else s).double().reshape(*shape) for s, shape in
            ((a_scale, (-1, 1)), (b_scale, (1, -1)))]  # fmt: skip
    exact = (a.double() @ b.double()) * wide[0] * wide[1]
    bound = (a.double().abs() @ b.double().abs()) * wide[0] * wide[1] * 2.0**-20
    # Three roundings to the output dtype: product, combined scale, result.
    rounding = exact.abs() * 3 * torch.finfo(out).eps / 2
    assert got.dtype is out
    assert got.shape == (m, n)
    assert ((got.double() - exact).abs() <= bound + rounding + 1e-30).all()


def test_gemm_batches_bias_and_accumulation():
    a, b, d = fp8((2, 3, 8), 6), fp8((8, 5), 7), randn((2, 3, 5), 8)
    scale, bias = torch.rand(6, 1), randn((5,), 9)
    got = hpu.fp8_gemm_v2(a, False, b, False, d, torch.float32, scale, torch.tensor(0.5), bias, True)
    exact = (a.double() @ b.double()) * scale.double().reshape(2, 3, 1) * 0.5 + bias.double() + d.double()
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)
    transposed = hpu.fp8_gemm_v2(fp8((8, 3), 6), True, b, False, None, torch.float32)
    torch.testing.assert_close(transposed.double(), fp8((8, 3), 6).double().t() @ b.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, E4M3])
def test_cast_takes_the_dtypes_of_the_device_only(dtype):
    with pytest.raises(NotEmulatedError, match=f"input is {dtype}; the device casts"):
        hpu.cast_to_fp8_v2(torch.ones(2).to(dtype), None, False, False, E4M3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A_scale_inv": torch.rand(4)}, "A_scale_inv holds 4 values, expected one or 3"),
        ({"B_scale_inv": torch.rand(2)}, "B_scale_inv holds 2 values"),
        ({"accumulate": True}, "needs the tensor D"),
        ({"A": torch.rand(3, 8)}, "A is torch.float32"),
    ],
)
def test_gemm_names_what_is_wrong(change, message):
    call = {"A": fp8((3, 8), 1), "trans_A": False, "B": fp8((8, 5), 2), "trans_B": False, "D": None}
    with pytest.raises(RuntimeError, match=message):
        hpu.fp8_gemm_v2(**call | {"out_dtype": torch.bfloat16} | change)


def test_gaudi2_reads_patterns_above_240_as_inf_and_nan():
    weight = torch.tensor([[1.0, 240.0], [256.0, 1.0], [288.0, 1.0]]).to(E4M3)
    ones = torch.ones(1, 2).to(E4M3)
    with personality("gaudi2"):
        row = hpu.fp8_gemm_v2(ones, False, weight, True, None, torch.float32)[0]
        assert row[0] == 241
        assert row[1].isinf()
        assert row[2].isnan()
    with personality("gaudi3"):
        assert hpu.fp8_gemm_v2(ones, False, weight, True, None, torch.float32)[0].tolist() == [241, 257, 289]


@pytest.mark.parametrize("kind", ["per_tensor", "per_channel"])
def test_stored_static_linear_is_reproduced_bit_for_bit(hardware, kind):
    data = stored(f"compressed_tensors/linear_w8a8fp8_static_{kind}.safetensors")
    x = hpu.cast_to_fp8_v2(data["input"], 1.0 / data["input_scale"], False, False, E4M3)[0]
    got = hpu.fp8_gemm_v2(
        A=x, trans_A=False, B=data["weight"], trans_B=True, D=None, out_dtype=torch.bfloat16,
        A_scale_inv=data["input_scale"], B_scale_inv=data["weight_scale"], bias=None, accumulate=False,
    )  # fmt: skip
    assert torch.equal(got, data["ref_output"])
    # Control: an fp32 product before the cast, the other plausible rounding, is off in about one of twenty elements.
    other = (data["input"].float() / data["input_scale"].float()).to(E4M3)
    wrong = hpu.fp8_gemm_v2(
        other, False, data["weight"], True, None, torch.bfloat16, data["input_scale"], data["weight_scale"]
    )
    assert 0.03 < (wrong != data["ref_output"]).float().mean() < 0.1


def test_stored_dynamic_linear_comes_from_another_device(hardware):
    """The stored dynamic output was not made with E4M3 activations: it is a GEMM on unquantised activations."""
    data = stored("compressed_tensors/linear_w8a8fp8.safetensors")
    x, weight, scale = data["input"], data["weight"], data["weight_scale"]
    row_scale = (x.abs().amax(-1, keepdim=True) + 1e-8) / FP8_LIMIT[hardware]
    quantised = hpu.cast_to_fp8_v2(x, 1.0 / row_scale, False, False, E4M3)[0]
    got = hpu.fp8_gemm_v2(quantised, False, weight, True, None, torch.bfloat16, row_scale.float(), scale)
    torch.testing.assert_close(got, data["ref_output"], atol=1e-3, rtol=1e-3)
    plain = (x.double() @ (weight.double() * scale.double()).t()).to(torch.bfloat16)
    assert (plain == data["ref_output"]).float().mean() > (got == data["ref_output"]).float().mean() + 0.3
