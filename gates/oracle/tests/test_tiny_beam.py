# SPDX-License-Identifier: Apache-2.0
"""The trained tiny Beam answers held-out questions in Hugging Face's own model; without the fact it cannot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gates.tiny import checkpoint, exam, language

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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("tiny"), fp8=False)


def test_held_out_answers(tiny: Path) -> None:
    shares = exam.examine(tiny, 10, 300, tuple(LEAST))
    short = {task: share for task, share in shares.items() if share < LEAST[task]}
    assert not short, shares


def test_answers_come_from_the_text(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with the facts' values exchanged after the question was made, no answer is right."""

    def blind(rng: random.Random, room: int) -> list[language.Part]:
        (text, lesson), *rest = language.lookup(rng, room)
        return [("".join(rng.choice("0123456789") if c.isdigit() else c for c in text), lesson), *rest]

    monkeypatch.setitem(language.TASKS, "blind", blind)
    assert exam.examine(tiny, 10, 300, ("blind",))["blind"] == 0
