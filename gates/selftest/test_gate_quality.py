# SPDX-License-Identifier: Apache-2.0
"""Quality gates against reference scores: a perfect server, a shifted one, and the floor."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

from gates.controls import matrix, toy_model
from gates.core import floor, gate, reference, stats
from gates.core.errors import GateError
from gates.core.result import Verdict
from gates.core.runner import run_one

GATES = gate.discover()
NAMES = ("perplexity", "top1-agreement", "kl-divergence")


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_model.reference(tmp_path_factory.mktemp("ref"))


def _run(address: str, path: Path, tmp: Path, **options: object) -> dict[str, object]:
    ctx = dataclasses.replace(matrix.context(address, tmp, reference=path), **options)
    return {name: run_one(GATES[name], ctx) for name in NAMES}


def test_equal_distributions_measure_zero(good_server: str, scores: Path, tmp_path: Path) -> None:
    seen = _run(good_server, scores, tmp_path, measure_floor=True)
    assert {k: r.verdict for k, r in seen.items()} == dict.fromkeys(NAMES, Verdict.PASS), seen
    assert seen["perplexity"].measurement.value == pytest.approx(0, abs=1e-9)
    assert seen["top1-agreement"].measurement.value == 1
    assert seen["kl-divergence"].measurement.value < 1e-3
    assert seen["perplexity"].noise_floor == 0
    assert seen["top1-agreement"].noise_floor == 1
    assert all(r.details["reference"]["checkpoint"] == "toy" for r in seen.values())


def test_shifted_log_probabilities_are_caught_by_each(good_server: str, scores: Path, tmp_path: Path) -> None:
    chosen = [GATES[name] for name in NAMES]
    seen = matrix.spoiled(good_server, "shifted-logits", tmp_path, chosen, reference=scores)
    assert {k: v[0] for k, v in seen.items()} == dict.fromkeys(NAMES, Verdict.FAIL), seen
    assert all("against the reference of checkpoint toy (exact)" in reason for _, reason in seen.values())


def test_floor_sees_a_server_that_differs_from_itself(good_server: str, tmp_path: Path) -> None:
    ctx = matrix.context(good_server, tmp_path)
    texts = [[97 + i, 98, 99, 100, 101] for i in range(3)]
    assert floor.measure(ctx, texts).mean_gap == 0
    server, address = matrix.proxy.serve(good_server, matrix.faults.make("shifted-logits"))
    other = dataclasses.replace(ctx, client=matrix.Client(address))
    other.client._model = ctx.facts.model
    steady = floor.measure(other, texts)
    assert steady.mean_gap == 0  # wrong, but the same every time: that is no noise
    server.shutdown()
    rng = random.Random(1)

    def noisy(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            for row in choice.get("prompt_logprobs") or []:
                for entry in (row or {}).values():
                    entry["logprob"] -= 0.2 * rng.random()
        return answer

    server, address = matrix.proxy.serve(good_server, matrix.faults.Fault("noise", "a server that wavers", reply=noisy))
    wavering = dataclasses.replace(ctx, client=matrix.Client(address))
    wavering.client._model = ctx.facts.model
    assert 0.01 < floor.measure(wavering, texts).mean_gap < 0.2
    server.shutdown()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=2), "not reference scores of schema 1"),
        (lambda d: d["passages"][0]["logprobs"].pop(), "list lengths do not agree"),
        (lambda d: d["passages"][0].pop("tokens"), "malformed reference scores"),
        (lambda d: d["passages"].clear(), "no passages"),
        (lambda d: d["passages"][1]["top"][3].clear(), "a position without candidates"),
        (lambda d: d["passages"].append(dict(d["passages"][0])), "two passages of one name"),
        (lambda d: d["passages"][0].update(tokens=[5], logprobs=[], top=[]), "without candidates, or none at all"),
    ],
)
def test_bad_reference_files_are_named(scores: Path, tmp_path: Path, change, message: str) -> None:
    data = json.loads(scores.read_text())
    change(data)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(data))
    with pytest.raises(GateError, match=message):
        reference.load(path)


def test_kl_against_the_full_formula() -> None:
    """On full distributions the top-k form is the textbook one."""
    rng = random.Random(5)
    for _ in range(20):
        p, q = ([rng.random() + 0.01 for _ in range(12)] for _ in range(2))
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        exact = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        got = stats.top_k_kl(dict(enumerate(map(math.log, p))), dict(enumerate(map(math.log, q))))
        assert got == pytest.approx(exact, abs=1e-9)


def test_statistics_against_known_values() -> None:
    assert stats.percentile([1, 2, 3, 4], 0.5) == 2.5
    low, high = stats.wilson(24, 24)
    assert low == pytest.approx(0.8620, abs=1e-4)
    assert high == 1.0
    with pytest.raises(ValueError, match="percentile of nothing"):
        stats.percentile([], 0.5)
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        stats.percentile([1.0], 2)


def test_the_passages_are_scored_once_a_run(good_server: str, scores: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def reply(path: str, body: dict, answer: dict) -> dict:
        asked.extend(["scored"] if "prompt_logprobs" in body else [])
        return answer

    server, address = matrix.proxy.serve(good_server, matrix.faults.Fault("count", "none", reply=reply))
    seen = _run(address, scores, tmp_path)
    server.shutdown()
    assert {r.verdict for r in seen.values()} == {Verdict.PASS}
    assert len(asked) == len(reference.load(scores).passages)
