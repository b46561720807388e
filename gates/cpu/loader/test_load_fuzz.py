# SPDX-License-Identifier: Apache-2.0
"""Headers that are valid one by one but not those of the model: planned completely, or refused with a message."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_model import as_rank

from vllm_gaudi.loader.headers import ITEM_SIZES, Stored, read_checkpoint
from vllm_gaudi.loader.plan import make_plan
from vllm_gaudi.loader.rescale import Rescale

# What names are made of, and what might be taken for it.
WORDS = (
    "model", "layers", "experts", "mlp", "0", "4", "99", "-1", "01", "weight", "weight_scale", "up_proj", "qkv_proj",
    "language_model", "lm_head", "bias", "", "é", "routed_experts", "w13_weight",
)  # fmt: skip


@pytest.fixture(scope="module")
def bare(checkpoint):
    """Factory: (layout, whether the model's own inventory helps) -> (model of rank 1 of 2, its headers)."""
    from rank_model import build

    made = {}

    def make(layout, expert_parallel):
        if (layout, expert_parallel) not in made:
            folder = checkpoint(**{layout: True})
            made[layout, expert_parallel] = build(folder, 2, 1, expert_parallel), read_checkpoint(folder)
        return made[layout, expert_parallel]

    return make


def sized(entry: Stored) -> Stored:
    size = ITEM_SIZES[entry.dtype]
    for extent in entry.shape:
        size *= extent
    return dataclasses.replace(entry, nbytes=size)


@st.composite
def changes(draw):
    """(which tensor, another tensor, what becomes of it) as numbers and values that fit any checkpoint."""
    kind = draw(st.sampled_from(("drop", "dtype", "shape", "turned", "name", "word", "as another", "twice")))
    words = draw(st.lists(st.sampled_from(WORDS), max_size=7).map(".".join))
    shape = tuple(draw(st.lists(st.integers(0, 130), max_size=4)))
    numbers = draw(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 6)))
    return kind, words, shape, draw(st.sampled_from(list(ITEM_SIZES))), numbers


def changed(stored: dict[str, Stored], change) -> None:
    kind, words, shape, dtype, (first, second, place) = change
    names = sorted(stored)
    name, other = names[first % len(names)], names[second % len(names)]
    entry = stored[name] if kind == "twice" else stored.pop(name)
    if kind == "drop":
        return
    if kind == "dtype":
        entry = sized(dataclasses.replace(entry, dtype=dtype))
    elif kind == "shape":
        entry = sized(dataclasses.replace(entry, shape=shape))
    elif kind == "turned":
        entry = dataclasses.replace(entry, shape=entry.shape[::-1])
    elif kind == "name":
        entry = dataclasses.replace(entry, name=words)
    elif kind == "word":
        parts = name.split(".")
        parts[place % len(parts)] = words
        entry = dataclasses.replace(entry, name=".".join(parts))
    elif kind == "as another":
        entry = dataclasses.replace(entry, name=other)
    else:
        entry = dataclasses.replace(entry, name=f"{name}.{words}")
    stored[entry.name] = entry


def shapes(stored: dict[str, Stored]) -> dict[str, tuple[int, ...]]:
    return {name: entry.shape for name, entry in stored.items()}


def planned_or_refused(model, stored):
    """Whether it is planned; anything but a refusal would end the test."""
    try:
        with as_rank(1, 2):
            plan = make_plan(model, stored, Rescale())
    except (ValueError, NotImplementedError):
        return False
    filled = sum(region.rows * region.columns for stack in plan.stacks for region in _regions(stack))
    assert filled == sum(part.rows * part.columns for stack in plan.stacks for part in stack.parts.values())
    return True


def _regions(stack):
    return [move.region for move in stack.moves] + stack.zeros


@pytest.mark.parametrize("inventory", [True, False], ids=["with inventory", "planner alone"])
@pytest.mark.parametrize(("layout", "expert_parallel"), [("fp8", True), ("mxfp4", False)])
@pytest.mark.long
def test_fuzzed_headers_are_planned_completely_or_refused(bare, monkeypatch, layout, expert_parallel, inventory):
    model, stored = bare(layout, expert_parallel)
    assert planned_or_refused(model, stored)
    if not inventory:
        monkeypatch.delattr(type(model), "checked_tensors")
    outcomes = set()

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.lists(changes(), min_size=1, max_size=3))
    def fuzz(several):
        table = dict(stored)
        for change in several:
            changed(table, change)
        outcomes.add((planned_or_refused(model, table), shapes(table) == shapes(stored)))

    fuzz()
    assert (False, False) in outcomes
    # With an inventory only the model's own tensors are planned; floating types are converted as stock does.
    assert not inventory or (True, False) not in outcomes


def test_a_planner_that_does_not_check_is_found(bare, monkeypatch):
    """Control of the fuzz test."""
    from vllm_gaudi.loader import plan

    model, stored = bare("fp8", True)
    monkeypatch.delattr(type(model), "checked_tensors")
    table = {name: entry for name, entry in stored.items() if name != "model.norm.weight"}
    assert not planned_or_refused(model, table)
    monkeypatch.setattr(plan, "check_coverage", lambda *_: None)
    with pytest.raises(AssertionError):
        planned_or_refused(model, table)
