# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch is counted, however it is spelt, when one rank calls it alone."""

import inspect
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist

from gates.hpusim import hccl, meters


@pytest.fixture
def alone(tmp_path):
    """A group of one rank."""
    dist.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# One call of every collective in a group of one rank, and the bytes it reports: the output's where there are two.
CALLS = {
    "all_gather": (lambda x, y: dist.all_gather([y], x), 8),
    "all_gather_coalesced": (lambda x, y: dist.all_gather_coalesced([[y]], [x]), 8),
    "all_gather_into_tensor": (lambda x, y: dist.all_gather_into_tensor(y, x), 8),
    "all_gather_single": (lambda x, y: dist.all_gather_single(y, x), 8),
    "all_reduce": (lambda x, y: dist.all_reduce(x), 8),
    "all_reduce_coalesced": (lambda x, y: dist.all_reduce_coalesced([x, y]), 16),
    "all_to_all": (lambda x, y: dist.all_to_all([y], [x]), 8),
    "all_to_all_single": (lambda x, y: dist.all_to_all_single(output=y, input=x), 8),
    "broadcast": (lambda x, y: dist.broadcast(x, 0), 8),
    "gather": (lambda x, y: dist.gather(x, [y]), 8),
    "irecv": (lambda x, y: dist.irecv(x), 8),
    "isend": (lambda x, y: dist.isend(x, 0), 8),
    "recv": (lambda x, y: dist.recv(x, 0), 8),
    "reduce": (lambda x, y: dist.reduce(x, 0), 8),
    "reduce_scatter": (lambda x, y: dist.reduce_scatter(y, [x]), 8),
    "reduce_scatter_single": (lambda x, y: dist.reduce_scatter_single(y, x), 8),
    "reduce_scatter_tensor": (lambda x, y: dist.reduce_scatter_tensor(y, x), 8),
    "scatter": (lambda x, y: dist.scatter(y, [x]), 8),
    "send": (lambda x, y: dist.send(x, 0), 8),
}


def test_every_collective_of_torch_is_known():
    """What moves tensors between ranks takes one, or a list of them, by one of these names."""
    tensors = {
        "tensor",
        "tensors",
        "tensor_list",
        "output",
        "output_tensor",
        "output_tensor_list",
        "output_tensor_lists",
    }
    functions = {name: function for name, function in vars(dist).items() if inspect.isfunction(function)}
    takes = {name for name, function in functions.items() if tensors & set(inspect.signature(function).parameters)}
    takes -= {"_all_gather_base", "_reduce_scatter_base"}  # old names, written by means of the new ones
    assert {"all_reduce", "isend", "scatter"} < takes
    assert takes == set(hccl.COLLECTIVES) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_each_collective_is_counted(name, alone):
    call, nbytes = CALLS[name]
    x, y = (torch.ones(2, device="hpu") for _ in range(2))
    heard = []
    hccl.collective_hooks.append(lambda op, tensor, group: heard.append(op))
    try:
        with meters.measure() as meter, suppress(ValueError, RuntimeError):  # one rank cannot send to itself
            call(x, y)
        with meters.measure() as host, suppress(ValueError, RuntimeError):
            call(torch.ones(2), torch.ones(2))
    finally:
        hccl.collective_hooks.pop()
    assert meter.total().collective_bytes == {f"{name} float32": nbytes}
    assert heard == [name]
    assert not host.total().collectives


@pytest.mark.parametrize(("name", "nbytes"), [("all_reduce", 8), ("all_gather_into_tensor", 8)])
def test_functional_collectives_are_counted_when_they_run(name, nbytes, alone):
    """What torch.compile makes of the calls: operators of a graph."""
    operator = getattr(torch.ops._c10d_functional, name)
    arguments = {"all_reduce": ("sum", "0"), "all_gather_into_tensor": (1, "0")}[name]
    x = torch.ones(2, device="hpu")
    with meters.measure() as meter:
        out, host = (torch.ops._c10d_functional.wait_tensor(operator(y, *arguments)) for y in (x, torch.ones(2)))
    assert (out.device.type, host.device.type) == ("hpu", "cpu")
    assert meter.total().collective_bytes == {f"{name} float32": nbytes}


def test_collectives(tmp_path):
    dist.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with meters.measure() as meter:
            x = torch.ones(8, dtype=torch.bfloat16, device="hpu") + 1
            dist.all_reduce(x)
            dist.all_reduce(torch.ones(3, device="hpu"))
            dist.all_reduce(torch.ones(3))  # a host tensor: not the card's business
    finally:
        dist.destroy_process_group()
    total = meter.total()
    assert total.collectives == {"all_reduce bfloat16": 1, "all_reduce float32": 1}
    assert total.collective_bytes == {"all_reduce bfloat16": 16, "all_reduce float32": 12}
    assert total.collective_cuts == 1


def test_the_functional_interface_is_one_collective(alone):
    x = torch.ones(16, dtype=torch.bfloat16, device="hpu")
    with meters.measure() as meter:
        torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD) + 1
    assert meter.total().collective_bytes == {"all_reduce bfloat16": 32}
