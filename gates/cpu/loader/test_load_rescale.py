# SPDX-License-Identifier: Apache-2.0
"""The byte table is the stock wrapper, on every byte; where stock changes nothing, so does it."""

import numpy as np
import pytest
import torch
from harness import plugins

from gates.oracle import fp8
from vllm_gaudi.loader.rescale import Rescale, functions_of, halved, translate

EVERY = torch.arange(256, dtype=torch.uint8)


@pytest.fixture(autouse=True)
def _plugins():
    plugins()


def test_table_halves_as_the_reference_does():
    assert torch.from_numpy(halved()).equal(fp8.halve(EVERY.view(fp8.E4M3)).view(torch.uint8))
    assert np.array_equal(Rescale().table, halved())


def test_slice_then_rescale_is_rescale_then_slice():
    weights = torch.randint(256, (37, 53), dtype=torch.uint8)
    whole, part = np.empty((37, 53), np.uint8), np.empty((5, 7), np.uint8)
    translate(halved(), weights.numpy(), whole)
    translate(halved(), weights[3:8, 11:18].numpy(), part)
    assert np.array_equal(whole[3:8, 11:18], part)


@pytest.mark.parametrize(
    "shape", [(0,), (1,), (70_001,), (300_000,), (262_147,), (3, 70_001), (5, 70_000), (70_001, 3), (0, 4), (0, 8)]
)
def test_blocks_of_the_table_meet(shape):
    data = torch.randint(256, shape, dtype=torch.uint8).numpy()
    expected = halved()[data]
    translate(halved(), data, data)
    assert np.array_equal(data, expected)


def test_disabled_when_stock_disables_it(monkeypatch):
    from types import SimpleNamespace

    from vllm_gaudi.extension import ops

    monkeypatch.setattr(ops, "get_config", lambda: SimpleNamespace(scale_adjustment=False))
    learnt = Rescale()
    assert learnt.table is None
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.weight_loader = ops.gaudi_weight_wrapper(print_nothing)
    assert learnt.of(parameter) == (False, print_nothing)


@pytest.mark.parametrize("change", [lambda t: (t.float() * 0.25).to(t.dtype), lambda t: (-t.float().abs()).to(t.dtype)])
def test_a_stock_wrapper_that_does_something_else_is_refused(monkeypatch, change):
    from vllm_gaudi.extension import ops

    def other(loader):
        return lambda _, loaded: loader(_, change(loaded) if loaded.dtype == fp8.E4M3 else loaded * 2.0)

    monkeypatch.setattr(ops, "gaudi_weight_wrapper", other)
    with pytest.raises(RuntimeError, match="FP8 byte 0x"):
        Rescale()


def test_scales_that_are_not_doubled_are_refused(monkeypatch):
    from vllm_gaudi.extension import ops

    def other(loader):
        halve = torch.from_numpy(halved())
        return lambda _, loaded: loader(
            _, halve[loaded.view(torch.uint8).int()].view(fp8.E4M3) if loaded.dtype == fp8.E4M3 else loaded * 4.0
        )

    monkeypatch.setattr(ops, "gaudi_weight_wrapper", other)
    with pytest.raises(RuntimeError, match="scales: vllm-gaudi does not multiply"):
        Rescale()


def print_nothing(param, loaded):
    """A weight loader."""


def test_wrappers_are_found_in_any_order_and_a_stranger_is_not_ignored():
    from vllm.platforms import current_platform

    from vllm_gaudi.extension.ops import gaudi_weight_wrapper

    learnt, synced = Rescale(), current_platform.make_synced_weight_loader
    for loader in (synced(gaudi_weight_wrapper(print_nothing)), gaudi_weight_wrapper(synced(print_nothing))):
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.weight_loader = loader
        assert learnt.of(parameter) == (True, print_nothing)

    def stranger(inner):
        return lambda *args: inner(*args)

    parameter.weight_loader = synced(stranger(gaudi_weight_wrapper(print_nothing)))
    assert learnt.of(parameter)[1] is not print_nothing
    assert len(list(functions_of(parameter.weight_loader))) == 4
