# SPDX-License-Identifier: Apache-2.0
"""The planner's own checks, without the inventory a model brings."""

import dataclasses

import pytest
import torch
from rank_model import as_rank

from vllm_gaudi.loader.coverage import check_coverage
from vllm_gaudi.loader.headers import CheckpointError, read_checkpoint
from vllm_gaudi.loader.plan import make_plan
from vllm_gaudi.loader.region import Region
from vllm_gaudi.loader.rescale import Rescale

EXPERT = "model.layers.4.mlp.experts.3.up_proj.weight"
QKV = "model.layers.1.self_attn.k_proj.weight"
NORM = "model.norm.weight"


def tiles(*places):
    return [Region("p", 0, 0, rows, columns, row, column) for row, column, rows, columns in places]


def test_a_parameter_that_is_tiled_is_accepted():
    check_coverage("p", (6, 4), tiles((0, 0, 2, 4), (2, 0, 4, 1), (2, 1, 4, 3)), [])


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 0, 2, 4), (3, 0, 3, 4)], "nothing in the checkpoint fills it from row 2, column 0"),
        ([(0, 0, 6, 3)], "from row 0, column 3"),
        ([], "no tensor of it found"),
        ([(0, 0, 6, 4), (5, 3, 1, 1)], "side by side"),
        ([(0, 0, 7, 4)], "side by side"),
        ([(0, 0, 6, 2), (0, 1, 6, 3)], "side by side"),
        ([(0, 0, 3, 4), (0, 0, 3, 4)], "side by side"),
    ],
)
def test_gaps_overlaps_and_excess_are_refused(places, message):
    with pytest.raises(CheckpointError, match=message):
        check_coverage("p", (6, 4), tiles(*places), [])


@pytest.fixture
def bare(monkeypatch, checkpoint, empty_model):
    """(model without an inventory, headers to tamper with)."""
    model = empty_model(checkpoint(fp8=True), 2, 1)
    monkeypatch.delattr(type(model), "checked_tensors")
    return model, dict(read_checkpoint(checkpoint(fp8=True)))


def reshape(name, shape):
    return lambda stored: stored.__setitem__(name, dataclasses.replace(stored[name], shape=shape))


def again(name, other):
    return lambda stored: stored.__setitem__(other, dataclasses.replace(stored[name], name=other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.pop(EXPERT), r"w13_weight: nothing in the checkpoint fills it from row"),
        (lambda stored: stored.pop(QKV), r"qkv_proj\.weight: nothing in the checkpoint fills it"),
        (lambda stored: stored.pop(NORM), r"model\.norm\.weight: nothing in the checkpoint"),
        (reshape(EXPERT, (40, 24)), r"3\.up_proj\.weight: shape \(40, 24\)"),
        (reshape(EXPERT, (12, 80)), r"3\.up_proj\.weight: shape"),
        (reshape(QKV, (40, 32)), r"k_proj\.weight: shape"),
        (reshape(NORM, (40, 2)), r"norm\.weight: shape"),
        (again(NORM, "model.norm.bias"), r"model\.norm\.bias: the model has no parameter"),
        (again(EXPERT, "model.layers.4.mlp.experts.3.up_proj.zeros"), r"no stack .*w13_zeros"),
    ],
)
def test_the_plan_alone_refuses_what_does_not_fit(bare, change, message):
    model, stored = bare
    change(stored)
    with as_rank(1, 2), pytest.raises(CheckpointError, match=message):
        make_plan(model, stored, Rescale())


def test_a_loader_without_a_rule_is_refused_not_guessed(checkpoint, empty_model):
    model = empty_model(checkpoint(fp8=True))
    model.model.norm.weight.weight_loader = lambda param, loaded: param.data.copy_(loaded.flip(0))
    with pytest.raises(NotImplementedError, match=r"model\.norm\.weight: no placement rule.*--load-format auto"):
        make_plan(model, read_checkpoint(checkpoint(fp8=True)), Rescale())
    assert isinstance(model.model.norm.weight, torch.nn.Parameter)
