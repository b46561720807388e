# SPDX-License-Identifier: Apache-2.0
"""A run that is killed with SIGKILL goes on where it was: what finished is not repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _command(address: str, ledger: Path) -> list[str]:
    only = ["--only", "api-models", "--only", "api-chat", "--only", "robustness"]
    return [
        sys.executable,
        "-m",
        "gates",
        "run",
        "--base-url",
        address,
        "--profile",
        "stand-in",
        "--ledger",
        str(ledger),
        *only,
    ]


def _lines(ledger: Path) -> list[dict]:
    return [json.loads(line) for line in ledger.read_text().splitlines() if line] if ledger.exists() else []


def test_killed_run_resumes(good_server: str, tmp_path: Path) -> None:
    ledger = tmp_path / "l.jsonl"
    command = _command(good_server, ledger)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as killed:
        end = time.monotonic() + 60
        while sum(line["kind"] == "result" for line in _lines(ledger)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        killed.kill()
    before = [line["gate"] for line in _lines(ledger) if line["kind"] == "result"]
    assert len(before) >= 2
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"{len(before)} results kept" in again.stderr
    lines = _lines(ledger)
    assert sum(line["kind"] == "run" for line in lines) == 1
    times = Counter(line["gate"] for line in lines if line["kind"] == "result")
    assert set(times.values()) == {1}
    assert set(before) < set(times)
