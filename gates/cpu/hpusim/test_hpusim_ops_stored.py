# SPDX-License-Identifier: Apache-2.0
"""Upstream's stored layer outputs that pass through several operators: block FP8, packed 4-bit, MoE of both."""

from __future__ import annotations

import torch
from hpusim_ops import hpu, personality, stored

moe = hpu.mixture_of_experts
TOP = 8


def routing(logits, dtype):
    """Softmax over all experts, the best eight, renormalised: Qwen3-MoE."""
    weights, table = torch.softmax(logits.float(), dim=-1).topk(TOP)
    return table, (weights / weights.sum(-1, keepdim=True)).to(dtype)


def unpack(words):
    """Nibbles of int32 words along the first axis, lowest first."""
    shifts = torch.arange(0, 32, 4).reshape(1, 8, 1)
    return (words.unsqueeze(1) >> shifts & 15).flatten(0, 1)


def repack(values):
    """Along the last axis, as the device wants it."""
    shifts = torch.arange(0, 32, 4)
    return (values.unflatten(-1, (-1, 8)).long() << shifts).sum(-1).to(torch.int32)


def test_block_fp8_linear():
    data = stored("fp8/linear.safetensors")
    scale = data["weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    with personality("gaudi3"):
        weight = hpu.cast_from_fp8(data["weight"], None, torch.bfloat16) * scale.bfloat16()
    torch.testing.assert_close(data["input"] @ weight.t(), data["ref_output"], atol=1e-3, rtol=2e-2)


def test_block_fp8_moe():
    """All experts share one weight. The reference quantises activations per block, this overload does not."""
    data = stored("fp8/moe.safetensors")
    x = data["hidden_states"]
    table, router = routing(data["router_logits"], x.dtype)
    w12, w3 = data["w13_weight"][0], data["w2_weight"][0]
    s12, s3 = data["w13_weight_scale_inv"][0].bfloat16(), data["w2_weight_scale_inv"][0].bfloat16()
    wanted = data["ref_output"].double()

    def distance(w12, s12):
        with personality("gaudi3"):
            got = moe.fp8_fused_weights_blockwise(
                x, table, router, [w12] * 128, [w3] * 128, [s12] * 128, [s3] * 128, 128, True, "silu", 0, 127
            )
        return (got.double() - wanted).norm() / wanted.norm()

    assert distance(w12, s12) < 0.05
    # Control: gate and up exchanged. Activations are small, where silu is nearly linear, so not far off, but twice.
    exchanged = w12.view(torch.uint8).roll(w12.shape[0] // 2, 0).view(w12.dtype)
    assert distance(exchanged, s12.roll(2, 0)) > 2 * distance(w12, s12)


def test_packed_linear_with_zero_points():
    data = stored("compressed_tensors/linear_wna16.safetensors")
    values = unpack(data["weight_packed"].t().contiguous())  # [in, out]
    zeros = unpack(data["weight_zero_point"]).t().contiguous()  # [groups, out]
    scale = data["weight_scale"].t().contiguous()
    weight = hpu.convert_from_uint4(repack(values), scale, repack(zeros), torch.bfloat16)
    torch.testing.assert_close(data["input"] @ weight, data["ref_output"], atol=1e-3, rtol=2e-2)


def test_packed_moe():
    data = stored("compressed_tensors/moe_wna16.safetensors")
    x = data["hidden_states"]
    table, router = routing(data["router_logits"], x.dtype)
    weights = []
    for name in ("w13", "w2"):
        values = unpack(data[f"{name}_weight_packed"])  # [in, out]
        groups = data[f"{name}_weight_scale"]
        eights = torch.full(groups.shape, 8)
        weights.append(hpu.convert_from_uint4(repack(values), groups, repack(eights), torch.bfloat16))
    got = moe.fused_weights(x, table, router, [weights[0]] * 128, [weights[1]] * 128, False, "silu", 0, 127)
    torch.testing.assert_close(got, data["ref_output"], atol=1e-4, rtol=1e-1)
