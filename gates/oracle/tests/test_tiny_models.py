# SPDX-License-Identifier: Apache-2.0
"""The trained tiny models answer held-out questions in Hugging Face's own classes; without the fact they cannot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from safetensors.torch import load_file

from gates.tiny import checkpoint, exam, language
from gates.tiny.family import NAMES, family
from gates.tiny.turns import Part

LEAST = {
    "lookup": 0.9,
    "chain": 0.9,
    "copy": 0.9,
    "echo": 0.8,
    "obey": 0.8,
    "remember": 0.8,
    "weather": 0.8,
    "alarm": 0.9,
}


@pytest.fixture(scope="module", params=NAMES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("tiny"), request.param, quantised=False)


def test_held_out_answers(tiny: Path) -> None:
    shares = exam.examine(tiny, 10, 300, tuple(LEAST))
    short = {task: share for task, share in shares.items() if share < LEAST[task]}
    assert not short, shares


def test_answers_come_from_the_text(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with the facts' values exchanged after the question was made, no answer is right."""

    def blind(rng: random.Random, room: int) -> list[Part]:
        (text, lesson), *rest = language.lookup(rng, room)
        return [("".join(rng.choice("0123456789") if c.isdigit() else c for c in text), lesson), *rest]

    monkeypatch.setitem(language.TASKS, "blind", blind)
    assert exam.examine(tiny, 10, 300, ("blind",))["blind"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_kept_weights_are_the_whole_layout_and_a_torn_run_is_named(name: str) -> None:
    """Both layouts come from the kept tensors; a state with a tensor too few or too many is refused by its name."""
    which = family(name)
    state = which.build().state_dict()
    assert set(which.quantized(dict(state))) == set(load_file(which.weights))
    taken = next(iter(state))
    with pytest.raises(ValueError, match=taken.rpartition(".")[0].rpartition(".")[2]):
        which.quantized({key: value for key, value in state.items() if key != taken})
    with pytest.raises(ValueError, match="without a place in the layout"):
        which.quantized({**state, "another.weight": state[taken]})
