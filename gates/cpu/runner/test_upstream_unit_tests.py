# SPDX-License-Identifier: Apache-2.0
"""Upstream's CPU-runnable unit tests have the same outcome with and without the series."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gates.cpu.runner import upstream_tests

TREE = Path(__file__).parents[3] / "build" / "trees" / "vllm-gaudi"


@pytest.mark.long
def test_same_outcomes_with_and_without_the_series(tmp_path: Path) -> None:
    if not TREE.exists():
        pytest.skip("build/trees/vllm-gaudi is not there: run `python -m scripts trees`")
    git = ["git", "-C", str(TREE)]
    root = subprocess.run([*git, "rev-list", "--max-parents=0", "HEAD"], check=True, capture_output=True, text=True)
    published = tmp_path / "published"
    published.mkdir()
    archive = subprocess.run([*git, "archive", root.stdout.split()[0]], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(published)], input=archive.stdout, check=True)
    before, after = upstream_tests.outcomes(published), upstream_tests.outcomes(TREE)
    assert sum(outcome == "passed" for outcome in before.values()) >= 150
    assert upstream_tests.differences(before, after) == {}


def test_difference_is_reported() -> None:
    before, after = {"a": "passed", "b": "failure"}, {"a": "failure", "b": "failure", "c": "passed"}
    assert upstream_tests.differences(before, after) == {"a": ("passed", "failure"), "c": ("absent", "passed")}
