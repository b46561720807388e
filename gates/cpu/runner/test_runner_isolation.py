# SPDX-License-Identifier: Apache-2.0
"""Isolation through the HTTP API: concurrent unique prompts under forced preemption, every token judged.

A token that another request's row, block or id leaked into is far from the best token of its own context, so the
fp32 reference finds it without knowing where it came from.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

FOREIGN = 0.5  # deficits of correct runs were at most 0.04; logits spread by about 1.2
VOCABULARY = 500


def _canaries(count: int, seed: int) -> list[list[int]]:
    """Unique prompts; groups of four share a block-aligned prefix, so that the prefix cache is hit."""
    draw = random.Random(seed)
    shared = [[draw.randrange(16, VOCABULARY) for _ in range(128)] for _ in range(count // 4 + 1)]
    return [
        (shared[i // 4] if i % 2 else []) + [draw.randrange(16, VOCABULARY) for _ in range(draw.randrange(20, 140))]
        for i in range(count)
    ]


def _ask(client, prompt: list[int], max_tokens: int) -> list[int]:
    answer = client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    return list(answer.choices[0].token_ids)


def _counter(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def _foreign(checkpoint: Path, outputs: int, max_tokens: int, env: dict[str, str]) -> tuple[int, float]:
    """Outputs with a foreign token, or of the wrong length, and the preemptions seen."""
    from gates.cpu.runner.served_reference import deficits
    from gates.hpusim.testing import serve

    prompts = _canaries(outputs, seed=outputs)
    arguments = ("--num-gpu-blocks-override", "14", "--block-size", "128", "--enable-prefix-caching")
    with serve(checkpoint, *arguments, env={"HPUSIM_TRACK": "0", **env}, max_num_seqs=8) as server:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda p: _ask(server.client, p, max_tokens), prompts))
        preemptions = _counter(server.get("/metrics"), "vllm:num_preemptions_total")
    wrong_length = sum(len(a) != max_tokens for a in answers)
    found = deficits(checkpoint, prompts, answers)
    return wrong_length + sum(d > FOREIGN for d in found), preemptions


@pytest.fixture(scope="session")
def served_llama(checkpoints_root: Path) -> Path:
    from gates.hpusim import checkpoints

    return checkpoints.make("llama", checkpoints_root)


@pytest.mark.parametrize("outputs", [24, pytest.param(512, marks=pytest.mark.long)])
def test_no_foreign_token(served_llama: Path, outputs: int) -> None:
    foreign, preemptions = _foreign(served_llama, outputs, 160, {})
    assert preemptions >= outputs // 10
    assert foreign == 0


@pytest.mark.long
@pytest.mark.parametrize("faults", [("one-logit", "logit-rows"), ("async-inputs",)])
def test_control_without_a_fix(served_llama: Path, tmp_path: Path, faults: tuple[str, ...]) -> None:
    from gates.cpu.runner import fault_site

    folder = fault_site.write(tmp_path / "site", *faults)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    foreign, preemptions = _foreign(served_llama, 96, 160, {"PYTHONPATH": path})
    assert preemptions
    assert foreign, "the fault went unnoticed"
