# SPDX-License-Identifier: Apache-2.0
"""The meters count what the device does, not how the emulation goes about it."""

import copy
import io
import json
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from habana_frameworks.torch.hpex.kernels import FusedSDPA

from gates.hpusim import faults, memory, meters, testing


def peak(call):
    """Bytes above what was live before, at the high-water mark of `call`."""
    memory.reset_peak_memory_stats()
    before = memory.memory_allocated()
    kept = call()
    del kept
    return memory.max_memory_allocated() - before


def counted(call):
    with meters.measure() as meter:
        call()
    return meter.total()


def test_the_workspace_fault_can_be_metered():
    q = torch.ones(1, 1, 8, 16, dtype=torch.bfloat16, device="hpu")
    mask = torch.zeros(1, 1, 8, 8, dtype=torch.bfloat16, device="hpu")
    with faults.enabled("ATTENTION_WORKSPACE", "nan,limit=1M"):
        total = counted(lambda: FusedSDPA.apply(q, q, q, mask))
    assert (total.attention_calls, total.attention_workspace) == (1, 4 * 8 * 8)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize(
    ("call", "launches"),
    [
        (lambda x: x[0].item(), 0),
        (lambda x: [float(value) for value in x], 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: (x + 1).nonzero(), 1),
        (lambda x: x[x > 0], 2),
        (lambda x: (x.sum().item(), x.sum().item()), 2),
    ],
)
def test_reading_a_value_launches_nothing(call, launches, mode):
    x = torch.ones(3, device="hpu")
    with mode():
        total = counted(lambda: call(x))
    assert total.launches == launches
    reads = [name for name in total.syncs if not name.startswith(("aten::nonzero ", "aten::index."))]
    assert total.d2h.count == sum(total.syncs[name] for name in reads)
    assert sum(total.syncs.values()) > 0


def moe_mxfp4():
    experts, hidden, inner = 2, 64, 32
    x = torch.ones(4, hidden, dtype=torch.bfloat16, device="hpu")
    table = torch.zeros(4, 1, dtype=torch.int64, device="hpu")
    weights = torch.ones(4, 1, dtype=torch.bfloat16, device="hpu")
    shapes = (
        (2 * inner, hidden // 2, 34), (hidden, inner // 2, 34),
        (2 * inner, hidden // 32, 120), (hidden, inner // 32, 120),
    )  # fmt: skip
    lists = [
        [torch.full((rows, columns), value, dtype=torch.uint8, device="hpu") for _ in range(experts)]
        for rows, columns, value in shapes
    ]
    return x, table, weights, *lists, 32, True, "silu", 0, experts - 1


def test_a_kernel_is_one_operator_whatever_computes_it():
    arguments = moe_mxfp4()
    operator = torch.ops.hpu.mixture_of_experts.mxfp4_fused_weights
    total = counted(lambda: operator(*arguments))
    assert (total.h2d.count, total.d2h.count, total.launches, dict(total.ops)) == (0, 0, 1, {operator.name(): 1})
    assert peak(lambda: operator(*arguments)) == 4 * 64 * 2


def test_a_kernel_holds_its_results_and_no_more():
    q = torch.ones(1, 1, 1024, 16, dtype=torch.bfloat16, device="hpu")
    statistics = 2 * 1024 * 4 + 4
    assert peak(lambda: FusedSDPA.apply(q, q, q, None, 0.0, True)) == 1024 * 16 * 2 + statistics
    ids, weight = torch.zeros(65536, dtype=torch.int64, device="hpu"), torch.zeros(4, 1, device="hpu")
    assert peak(lambda: F.embedding(ids, weight)) == 4 * 65536


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_index_functions_are_one_operator(mode):
    x, ids = torch.ones(5, 2, device="hpu"), torch.tensor([0, -1, 3], device="hpu")
    calls = {
        "embedding": lambda: F.embedding(ids, x),
        "index_select": lambda: x.index_select(0, ids),
        "index_copy_": lambda: x.index_copy_(0, ids, x[:3].clone()),
        "one_hot": lambda: F.one_hot(ids, 4),
    }
    with mode():
        for name, call in calls.items():
            total = counted(call)
            extra = 1 if name == "index_copy_" else 0  # the clone
            assert sum(total.ops.values()) == 1 + extra, name
            assert (total.launches, total.d2h.count, sum(total.syncs.values())) == (1, 0, 0)
            assert not total.mixed, name
        assert F.one_hot(ids, 4).tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
        assert counted(lambda: x.index_select(0, ids.cpu())).mixed.total() == 1, "a host index stays one"
        asked = counted(lambda: F.one_hot(ids.clamp(min=0)))
        assert (asked.d2h.count, sum(asked.syncs.values()), asked.mixed.total()) == (1, 1, 0)


def test_memory_follows_what_grows_a_storage():
    start = memory.memory_allocated()
    x = torch.empty(0, device="hpu").resize_(1000)
    assert memory.memory_allocated() - start == 4000
    x.resize_(10)
    assert memory.memory_allocated() - start == 4000, "a storage keeps what it has"
    half = torch.zeros(50, device="hpu")
    out = torch.empty(0, device="hpu")
    torch.cat([half, half], out=out)
    assert memory.memory_allocated() - start == 4000 + 200 + 400
    del x, half, out
    assert memory.memory_allocated() == start


def test_printing_and_saving_read_and_copying_does_not():
    x = torch.ones(5, device="hpu")
    for call, nbytes in (
        (lambda: repr(x), 20),
        (lambda: repr(torch.zeros(100, 100, device="hpu")), 6 * 6 * 4),
        (lambda: torch.save(x, io.BytesIO()), 20),
        (lambda: torch.save({"a": x, "b": x[:2]}, io.BytesIO()), 20),
    ):
        total = counted(call)
        assert (total.d2h.count, total.d2h.bytes, total.d2h.blocking) == (1, nbytes, 1)
        assert sum(total.syncs.values()) == 1
    made = []
    total = counted(lambda: made.extend((copy.deepcopy(x), copy.copy(x))))
    assert (total.d2h.count, sum(total.syncs.values()), total.launches) == (0, 0, 1)
    assert dict(total.ops) == {"aten::clone": 1}
    assert [tensor.device.type for tensor in made] == ["hpu", "hpu"]
    assert counted(lambda: torch.save(torch.ones(3), io.BytesIO())).d2h.count == 0


ENDS = """
    import os, signal, sys, torch
    from multiprocessing import get_context
    (torch.ones(3, device="hpu") + 1).cpu()
    if sys.argv[1] == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    child = get_context("fork").Process(target=lambda: (torch.ones(3, device="hpu") + 1).tolist())
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_every_way_to_end_writes_a_summary(tmp_path):
    codes = {}
    for end in ("term", "fork"):
        env = testing.environment(HPUSIM_METERS=str(tmp_path / (end + ".{pid}")))
        command = [sys.executable, "-c", textwrap.dedent(ENDS), end]
        codes[end] = subprocess.run(command, env=env, timeout=120, check=False).returncode
    assert codes == {"term": -15, "fork": 0}
    written = {end: [json.loads(path.read_text()) for path in tmp_path.glob(f"{end}.*")] for end in codes}
    assert [len(found) for found in written.values()] == [1, 2]
    operations = [next(iter(found["phases"]["outside"]["syncs"]["by"])).split(" @ ")[0] for found in written["fork"]]
    assert sorted(operations) == ["copy to host", "tolist"], "each its own, the child not its parent's"
