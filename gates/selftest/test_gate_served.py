# SPDX-License-Identifier: Apache-2.0
"""All gates against the trained tiny models on the emulated Gaudi, then against mutated builds of the wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gates.controls import matrix, mutants, mutated
from gates.core import gate, ledger
from gates.core.result import Verdict
from gates.tiny import serve

pytestmark = [pytest.mark.engine, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
# What the emulated Gaudi and a tiny model cannot show, each with the start of its reason.
SKIPPED = {
    "accuracy-gsm8k": "needs a model that can do arithmetic",
    "accuracy-math500": "needs a model that can do arithmetic",
    "compiles-after-ready": "the server runs eagerly",
    "ruler-aggregation": "models of the tiny",
}
RECORDED = ("canary", "output-length-band", "kv-blocks", "loader-state")
PROFILES = {"beam": "tiny", "muse": "tiny-muse"}


class Served(NamedTuple):
    """A finished run: what was served, what the gates said, where, and the exit code."""

    checkpoint: Path
    scores: Path
    run: ledger.Run
    folder: Path
    code: int


def _judge(model: str, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The user's two commands, from an empty folder."""
    checkpoint, scores = mutated.make(tmp_path_factory.mktemp(model), model)
    folder = tmp_path_factory.mktemp("user")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with serve.serve(checkpoint, log=folder / "server.log") as server:
        first = ["run", "--base-url", server.url, "--profile", PROFILES[model], "--floor", "--reference", str(scores)]
        # A mutated build has another address: the arguments make it the server whose records these are.
        first += ["--server-log", str(folder / "server.log"), "--server-args", matrix.SERVER_ARGS]
        gates = [sys.executable, "-m", "gates"]
        # The gates that compare with a record make it first.
        record = [*first, *(word for name in RECORDED for word in ("--only", name))]
        subprocess.run([*gates, *record], cwd=folder, env=env, timeout=3600)
        code = subprocess.run([*gates, *first], cwd=folder, env=env, timeout=3600).returncode
    subprocess.run([*gates, "report"], cwd=folder, env=env, check=True)
    found = ledger.load(folder / "ledger" / "gates.jsonl")[-1]
    return Served(checkpoint, scores, found, folder, code)


@pytest.fixture(scope="module")
def beam(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return _judge("beam", tmp_path_factory)


@pytest.fixture(scope="module", params=["beam", "muse"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    if request.param == "beam":
        found: Served = request.getfixturevalue("beam")
        return found
    return _judge(request.param, tmp_path_factory)


def test_every_gate_is_green_or_says_why_not(served: Served, find_harness: Callable[[], str]) -> None:
    due = dict(SKIPPED)
    try:
        find_harness()
    except gate.Skip as skip:
        due["accuracy-lookup"] = str(skip)
    results = served.run.results
    assert set(results) == set(gate.discover())
    red = {k: r.reason for k, r in results.items() if r.verdict in (Verdict.FAIL, Verdict.ERROR)}
    assert not red
    skipped = {k: r.reason for k, r in results.items() if r.verdict is Verdict.SKIP}
    assert set(skipped) == set(due), skipped
    assert all(reason.startswith(due[k]) for k, reason in skipped.items()), skipped
    assert served.code == 0


def test_the_server_was_preempting_and_told_who_it_is(served: Served) -> None:
    assert served.run.results["isolation"].details["preemptions"] > 0
    assert served.run.lock_hash != "unknown"
    page = (served.folder / "build" / "report" / "report.html").read_text()
    assert served.run.lock_hash[:8] in page
    assert "needles" in page


@pytest.mark.parametrize("name", sorted(mutants.BUILDS))
def test_mutated_build_is_red_on_its_own_gates(name: str, beam: Served, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(beam.folder / "ledger" / "records", cache)
    seen = mutated.row(beam.checkpoint, beam.scores, cache, name)
    print({k: reason for k, (verdict, reason) in seen.items() if verdict is Verdict.FAIL})
    missed, extra = mutated.wrong(name, seen)
    assert not missed
    assert not extra
