# SPDX-License-Identifier: Apache-2.0
"""The accuracy gate around a stand-in harness: only a hub out of reach is a SKIP, and nothing outlives the gate."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from gates.core import gate, profile, runner, server_facts, thresholds
from gates.core.client import Client
from gates.core.result import GateResult, Verdict
from gates.device import accuracy

FACTS = server_facts.ServerFacts("0.26.0", None, "m", 4096, {})
SCORES = {"results": {"gsm8k": {"exact_match,flexible-extract": 0.95, "exact_match_stderr,flexible-extract": 0.015}}}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the gate with a Python text in the place of the harness; `OUT` in it is the folder for results."""

    def judge(script: str, deadline: float = 60.0) -> GateResult:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(accuracy, "GRACE_S", 0.5)
        monkeypatch.setattr(
            accuracy, "command", lambda ctx, out: [sys.executable, "-c", f"OUT = {str(out)!r}\n{script}"]
        )
        sizes = dataclasses.replace(profile.get("quick"), gate_deadline_s=deadline)
        client = Client("http://127.0.0.1:9", api_key="sk-1")
        ctx = gate.Context(client, FACTS, sizes, thresholds.load(), records=tmp_path)
        return runner.run_one(accuracy.GATE, ctx)

    return judge


def test_score_key_and_standard_error(judged) -> None:
    result = judged(
        "import os\nassert os.environ['OPENAI_API_KEY'] == 'sk-1'\n"
        f"open(OUT + '/results_1.json', 'w').write({json.dumps(SCORES)!r})"
    )
    assert result.verdict is Verdict.PASS, result.reason
    assert result.details["stderr"] == 0.015


def test_a_model_that_got_worse_fails(judged) -> None:
    worse = json.dumps(SCORES).replace("0.95", "0.5")
    result = judged(f"open(OUT + '/results_1.json', 'w').write({worse!r})")
    assert result.verdict is Verdict.FAIL
    assert "0.5 share, allowed is at least 0.91" in result.reason


@pytest.mark.parametrize(
    ("script", "verdict", "text"),
    [
        ("raise SystemExit('openai.AuthenticationError: 401')", Verdict.ERROR, "AuthenticationError: 401"),
        ("pass", Verdict.ERROR, "did not finish"),
        ("raise ConnectionError('Could not reach huggingface.co')", Verdict.SKIP, "cannot reach its data sets"),
    ],
)
def test_what_keeps_the_harness_from_a_score(judged, script: str, verdict: Verdict, text: str) -> None:
    result = judged(script)
    assert result.verdict is verdict
    assert text in result.reason


def test_a_harness_that_hangs_is_ended(judged, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    result = judged(script, deadline=2.5)
    assert result.verdict is Verdict.ERROR
    assert "did not end in time" in result.reason
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
