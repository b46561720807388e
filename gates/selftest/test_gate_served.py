# SPDX-License-Identifier: Apache-2.0
"""All gates against the trained tiny Beam on the emulated Gaudi: the rebuilt wheels, then mutated builds of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gates.controls import mutants, mutated
from gates.core import gate, ledger
from gates.core.result import Verdict
from gates.tiny import serve

pytestmark = [pytest.mark.engine, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
# What the emulated Gaudi and a tiny model cannot show, each with the start of its reason.
SKIPPED = {
    "accuracy-gsm8k": "",
    "compiles-after-ready": "the server runs eagerly",
    "ruler-aggregation": "models of the tiny wording cannot count",
}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return mutated.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def run(material: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[ledger.Run, Path, int]:
    """The user's two commands, from an empty folder: the run, its folder and its exit code."""
    checkpoint, scores = material
    folder = tmp_path_factory.mktemp("user")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with serve.serve(checkpoint, log=folder / "server.log") as server:
        first = ["run", "--base-url", server.url, "--profile", "tiny", "--floor", "--reference", str(scores)]
        first += ["--server-log", str(folder / "server.log")]
        gates = [sys.executable, "-m", "gates"]
        code = subprocess.run([*gates, *first], cwd=folder, env=env, timeout=1200).returncode
    subprocess.run([*gates, "report"], cwd=folder, env=env, check=True)
    (found,) = ledger.load(folder / "ledger" / "gates.jsonl")
    return found, folder, code


def test_every_gate_is_green_or_says_why_not(run: tuple[ledger.Run, Path, int]) -> None:
    found, _, code = run
    assert set(found.results) == set(gate.discover())
    red = {k: r.reason for k, r in found.results.items() if r.verdict in (Verdict.FAIL, Verdict.ERROR)}
    assert not red
    skipped = {k: r.reason for k, r in found.results.items() if r.verdict is Verdict.SKIP}
    assert set(skipped) == set(SKIPPED)
    assert all(reason.startswith(SKIPPED[k]) for k, reason in skipped.items()), skipped
    assert code == 0


def test_the_server_was_preempting_and_told_who_it_is(run: tuple[ledger.Run, Path, int]) -> None:
    found, folder, _ = run
    assert found.results["isolation"].details["preemptions"] > 0
    assert found.lock_hash != "unknown"
    page = (folder / "build" / "report" / "report.html").read_text()
    assert found.lock_hash[:8] in page
    assert "needles" in page


@pytest.mark.parametrize("name", sorted(mutants.BUILDS))
def test_mutated_build_is_red_on_its_own_gates(
    name: str, material: tuple[Path, Path], run: tuple[ledger.Run, Path, int], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(run[1] / "build" / "gate-cache", cache)
    missed, extra = mutated.wrong(name, mutated.row(*material, cache, name))
    assert not missed
    assert not extra
