# SPDX-License-Identifier: Apache-2.0
"""The scoring command: whole runs, runs in two halves, step outputs, bounded memory, clear refusals."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.oracle import score


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return beam.write(tmp_path_factory.mktemp("score"), SHAPES["served"], seed=41, fp8=True)


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "ids.json"
    path.write_text(json.dumps([5, 77, 131, 9, 300]))
    return path


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_two_halves_print_what_one_run_prints(checkpoint, tokens, tmp_path, capsys):
    run = [str(checkpoint), "--mode", "w8a8"]
    assert score.main([*run, "--tokens", str(tokens)]) == 0
    whole = lines(capsys)
    hidden = tmp_path / "hidden.safetensors"
    assert score.main([*run, "--tokens", str(tokens), "--stop-layer", "4", "--out", str(hidden)]) == 0
    assert lines(capsys) == []
    assert score.main([*run, "--hidden", str(hidden), "--start-layer", "4"]) == 0
    assert [record["top"] for record in lines(capsys)] == [record["top"] for record in whole]
    assert [record["next"] for record in whole[:-1]] == [77, 131, 9, 300]
    assert all(record["gap"] >= 0 and record["logprob"] <= 0 for record in whole[:-1])


def test_steps_are_written_on_request(checkpoint, tokens, tmp_path):
    out = tmp_path / "steps.safetensors"
    assert score.main([str(checkpoint), "--tokens", str(tokens), "--steps", "--out", str(out)]) == 0
    steps = load_file(out)
    assert steps["layers.3.expert_ids"].shape == (5, 4)
    assert steps["layers.6.q"].shape == (5, 4, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "either --tokens or --hidden"), (["--hidden", "x", "--stop-layer", "3"], "need --out")],
)
def test_refusals_say_what_to_do(checkpoint, capsys, arguments, message):
    assert score.main([str(checkpoint), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_unknown_model_type_and_damaged_shard_are_refused(tmp_path, capsys, tokens):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    shard = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, shard)
    assert score.main([str(tmp_path), "--tokens", str(tokens)]) == 2
    assert "no reference for model_type 'llama'" in capsys.readouterr().err
    shard.write_bytes(shard.read_bytes()[:-2])
    assert score.main([str(tmp_path), "--tokens", str(tokens)]) == 2
    assert "download it again" in capsys.readouterr().err


def test_memory_is_bounded_by_a_layer_not_by_the_checkpoint(tmp_path):
    """A checkpoint of 24 layers, 220 MB: the peak grows by far less than the file."""
    config = {**SHAPES["served"], "num_hidden_layers": 24, "num_experts": 64, "moe_intermediate_size": 192}
    folder = beam.write(tmp_path, config, seed=1, shards=8)
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    code = (
        "import resource, sys, torch; torch.set_num_threads(1)\n"
        "from gates.oracle.beam.model import BeamReference\n"
        "def private():\n"
        "    return sum(int(l.split()[1]) for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty'))\n"
        "before = private(); peak = [0]\n"
        "model = BeamReference(sys.argv[1], 'bf16', trace=lambda n, v: peak.__setitem__(0, max(peak[0], private())))\n"
        "model(torch.arange(4)); print((peak[0] - before) * 1024)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    grown = int(out.stdout)
    print(f"checkpoint {size / 1e6:.0f} MB, private memory grew by {grown / 1e6:.0f} MB")
    assert size > 150e6
    assert grown < size / 3
