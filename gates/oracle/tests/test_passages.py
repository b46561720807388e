# SPDX-License-Identifier: Apache-2.0
"""The file of reference scores: what the gates read back is what Hugging Face's model gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.core import reference
from gates.oracle import passages


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return beam.write(tmp_path_factory.mktemp("passages") / "model", SHAPES["served"])


def test_scores_are_hugging_faces(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from transformers import BeamForCausalLM

    (tmp_path / "a.txt").write_text("hello world, the weather of Paris is in the city")
    out = tmp_path / "deep" / "scores.json"
    command = [str(checkpoint), "--text", str(tmp_path / "a.txt"), "--mode", "fp32", "--out", str(out)]
    assert passages.main(command) == 0
    (passage,) = reference.load(out).passages
    model = BeamForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logprobs = model(torch.tensor([passage.tokens])).logits[0].log_softmax(-1)
    for place, (token, value, top) in enumerate(zip(passage.tokens[1:], passage.logprobs, passage.top, strict=True)):
        assert value == pytest.approx(float(logprobs[place, token]), abs=2e-3)
        best = logprobs[place].topk(20)
        assert list(top.values()) == pytest.approx(best.values.tolist(), abs=2e-3)
    capsys.readouterr()
    assert passages.main(command) == 0
    assert "already scored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", "cannot read the passages"), ('{"a": [1]}', "two tokens or more"), ("{", "cannot read the passages")],
)
def test_bad_passages_are_named(checkpoint: Path, tmp_path: Path, content: str, message: str, capsys) -> None:
    path = tmp_path / "ids.json"
    path.write_text(content)
    assert passages.main([str(checkpoint), "--tokens", str(path), "--out", str(tmp_path / "o.json")]) == 2
    assert message in capsys.readouterr().err


def test_two_passages_of_one_name_are_refused(checkpoint: Path, tmp_path: Path, capsys) -> None:
    texts = [tmp_path / "a" / "book.txt", tmp_path / "b" / "book.txt"]
    for path in texts:
        path.parent.mkdir()
        path.write_text("words of it")
    command = [str(checkpoint), "--text", str(texts[0]), "--text", str(texts[1]), "--out", str(tmp_path / "o.json")]
    assert passages.main(command) == 2
    assert "two texts are named `book`" in capsys.readouterr().err


def test_another_checkpoint_is_scored_again(checkpoint: Path, tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.json", tmp_path / "o.json"
    ids.write_text(json.dumps({"a": [5, 6, 7]}))
    command = ["--tokens", str(ids), "--mode", "fp32", "--out", str(out)]
    assert passages.main([str(checkpoint), *command]) == 0
    first = reference.load(out)
    other = beam.write(tmp_path / "other", SHAPES["served"], seed=18)
    assert passages.main([str(other), *command]) == 0
    assert reference.load(out).checkpoint != first.checkpoint
