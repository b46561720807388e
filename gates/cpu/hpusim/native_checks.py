# SPDX-License-Identifier: Apache-2.0
"""Checks of the native device, run in a process of its own with HPUSIM_NATIVE=1; prints {check: "" or traceback}."""

from __future__ import annotations

import json
import sys
import traceback

import pytest
import torch
import torch.nn.functional as F

from gates.hpusim import memory

HPU = torch.device("hpu", 0)


def both(function, *tensors):
    """Run on the host and on the device; results must be equal, and the device's must live there."""
    host = function(*[t.clone() for t in tensors])
    device = function(*[t.to("hpu") for t in tensors])
    host, device = (out if isinstance(out, (tuple, list)) else (out,) for out in (host, device))
    for wanted, got in zip(host, device, strict=True):
        assert got.device == HPU, got.device
        assert torch.equal(wanted, got.cpu()), (wanted, got.cpu())


def check_devices_and_factories():
    for make in (
        lambda: torch.zeros(2, 3, device="hpu"),
        lambda: torch.arange(5, device="hpu"),
        lambda: torch.full((2,), 7, device="hpu:0"),
        lambda: torch.randn(3, device="hpu"),
        lambda: torch.tensor([1, 2], device="hpu"),
        lambda: torch.zeros(2, device="hpu").new_ones(3),
        lambda: torch.rand_like(torch.zeros(2, device="hpu")),
        lambda: torch.ones(2).hpu(),
        lambda: torch.nn.Linear(2, 3).to("hpu").weight,
        lambda: torch.empty((2, 3), device="hpu", dtype=torch.float8_e4m3fn),
    ):
        assert make().device == HPU
    assert str(torch.zeros(2, device="hpu")).endswith("device='hpu:0')")
    with torch.device("hpu"):
        assert torch.ones(1).device == HPU
    assert torch.zeros(1).device.type == "cpu"
    with pytest.raises(TypeError, match="can't convert hpu"):
        torch.zeros(1, device="hpu").numpy()


def check_arithmetic_matches_the_host():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    both(torch.matmul, a, b)
    both(lambda x: x.softmax(-1).topk(2), a)
    both(lambda x: x.bfloat16().float().sum(0, keepdim=True), a)
    both(lambda x: x.sort(dim=1, descending=True), a)
    both(lambda x: torch.cat((x, x * 2)), a)
    both(lambda x: x.split(2), a)
    both(lambda x: F.layer_norm(x, (7,)), a)
    both(lambda x: torch.where(x > 0, x, 0.0), a)
    both(lambda x: x[x > 0], a)
    both(lambda x: x.nonzero(), a)
    both(lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]), a)


def check_views_share_memory():
    x = torch.arange(12, device="hpu")
    views = [x.view(3, 4), x.reshape(4, 3), x[2:5], x.unflatten(0, (2, 6)), x.unsqueeze(0), x.view(3, 4).t()]
    views += [x.as_strided((2, 2), (3, 1)), x.view(torch.int32), x.expand(2, 12), x.detach(), x.chunk(3)[1]]
    for view in views:
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.device == HPU
    x.view(3, 4)[1] = -1
    assert x.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 8, 9, 10, 11]
    x[2:5].add_(100)
    assert x[2:5].tolist() == [102, 103, 99]
    bytes_ = torch.tensor([1.0], device="hpu").view(torch.uint8)
    assert bytes_.tolist() == [0, 0, 128, 63]
    assert x.is_contiguous()
    assert not x.view(3, 4).t().is_contiguous()


def check_inference_mode_views_and_writes():
    with torch.inference_mode():
        cache = torch.zeros(4, 3, device="hpu")
        cache.index_copy_(0, torch.tensor([-1, 0], device="hpu"), torch.ones(2, 3, device="hpu"))
        part = cache.view(2, 6)[1]
        part.mul_(5)
        assert cache.tolist() == [[1.0] * 3, [0.0] * 3, [0.0] * 3, [5.0] * 3]


def check_out_arguments_and_resizing():
    a = torch.randn(3, 4, device="hpu")
    out = torch.empty(3, 3, device="hpu")
    assert torch.matmul(a, a.t(), out=out) is out
    assert torch.equal(out.cpu(), a.cpu() @ a.cpu().t())
    empty = torch.empty(0, device="hpu")
    torch.add(a, 1, out=empty)
    assert torch.equal(empty.cpu(), a.cpu() + 1)
    a.resize_(6, 4)
    assert a.shape == (6, 4)


def check_copies_between_devices():
    host = torch.randn(3, 4)
    device = host.to("hpu")
    assert device.data_ptr() != host.data_ptr()
    assert torch.equal(device.cpu(), host)
    assert device.to("hpu") is device
    assert device.to("hpu", torch.bfloat16).dtype is torch.bfloat16
    host[:, :2].copy_(torch.zeros(3, 2, device="hpu"))
    assert (host[:, :2] == 0).all()
    device[0] = torch.full((4,), 9.0)
    assert (device[0].cpu() == 9).all()
    assert device.to("cpu", non_blocking=True).device.type == "cpu"
    assert torch.equal(torch.empty(3, 4, device="hpu").copy_(host).cpu(), host)


def check_mixing_host_and_device_is_refused():
    device, host = torch.zeros(3, device="hpu"), torch.ones(3)
    for function, name in (
        (lambda: device + host, "aten::add"),
        (lambda: torch.matmul(device.view(1, 3), host.view(3, 1)), "aten::mm"),
        (lambda: torch.cat((device, host)), "aten::cat"),
        (lambda: device.index_select(0, torch.tensor([0])), "aten::index_select"),
        (lambda: F.embedding(torch.tensor([1]), torch.zeros(3, 2, device="hpu")), "aten::index_select"),
    ):
        # torch itself refuses what it shapes before dispatch, the device everything else.
        with pytest.raises(RuntimeError, match=f"{name}.* is on the host; move it with|to be on the same device"):
            function()
    assert (device + torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert (host + 1).device.type == "cpu"


def check_device_operators_run_on_device_tensors():
    x = torch.randn(4, 16, device="hpu", dtype=torch.bfloat16)
    quantised, _ = torch.ops.hpu.cast_to_fp8_v2(x, torch.tensor(2.0, device="hpu"), False, False, torch.float8_e4m3fn)
    assert quantised.device == HPU
    weight = torch.randn(8, 16).to(torch.float8_e4m3fn).to("hpu")
    assert torch.ops.hpu.fp8_gemm_v2(quantised, False, weight, True, None, torch.bfloat16).device == HPU
    w12, w3 = torch.randn(12, 16, device="hpu").bfloat16(), torch.randn(16, 6, device="hpu").bfloat16()
    table = torch.zeros(4, 1, dtype=torch.int64, device="hpu")
    router = torch.ones(4, 1, device="hpu", dtype=torch.bfloat16)
    out = torch.ops.hpu.mixture_of_experts(x, table, router, [w12], [w3], True, "silu", 0, 0)
    assert out.device == HPU
    with pytest.raises(RuntimeError, match=r"hpu::mixture_of_experts: .*w3 of shape \[16, 6\] is on the host"):
        torch.ops.hpu.mixture_of_experts.fused_weights(x, table, router, [w12], [w3.cpu()], True, "silu", 0, 0)
    assert F.one_hot(torch.tensor([-1, 1], device="hpu"), 3).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert torch.arange(3, device="hpu").index_select(0, torch.tensor([-1], device="hpu")).item() == 2


def check_memory_is_counted():
    before = memory.memory_allocated()
    x = torch.zeros(1 << 18, device="hpu")
    assert memory.memory_allocated() == before + (1 << 20)
    y = x + 1
    view = y[:10]
    assert memory.memory_allocated() == before + (2 << 20)
    memory.reset_peak_memory_stats()
    del x, y
    assert memory.memory_allocated() == before + (1 << 20)
    assert memory.max_memory_allocated() == before + (2 << 20)
    del view
    assert memory.memory_allocated() == before
    assert torch.hpu.memory_allocated() == before
    free, total = torch.hpu.mem_get_info()
    assert free == total - before
    with pytest.raises(torch.OutOfMemoryError, match="emulated HPU out of memory: asked for"):
        torch.empty(total // 4 + 1, device="hpu")
    assert memory.memory_allocated() == before


def check_generators_and_scalars():
    generator = torch.Generator(device="hpu")
    generator.manual_seed(3)
    first = torch.rand(4, device="hpu", generator=generator)
    generator.manual_seed(3)
    assert torch.equal(first.cpu(), torch.rand(4, device="hpu", generator=generator).cpu())
    x = torch.tensor([3.5], device="hpu")
    assert x.item() == 3.5
    assert bool(x > 3)
    assert x.tolist() == [3.5]


def check_autograd_free_modules_and_state():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("hpu")
    state = {name: value.cpu() for name, value in layer.state_dict().items()}
    layer.load_state_dict(state)
    assert next(layer.parameters()).device == HPU
    with torch.no_grad():
        assert layer(torch.ones(2, 4, device="hpu")).shape == (2, 4)


def main() -> None:
    results = {}
    for name, function in sorted(globals().items()):
        if name.startswith("check_"):
            try:
                function()
                results[name] = ""
            except Exception:
                results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
