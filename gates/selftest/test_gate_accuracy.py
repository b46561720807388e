# SPDX-License-Identifier: Apache-2.0
"""The accuracy gates around a stand-in harness: a hub out of reach is a SKIP, no key leaks, nothing outlives them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gates.core import gate, harness, profile, runner, server_facts, thresholds
from gates.core.client import Client
from gates.core.result import GateResult, Verdict
from gates.device import accuracy_gsm8k, accuracy_lookup, accuracy_math500
from scripts import environment

FACTS = server_facts.ServerFacts("0.26.0", None, "m", 4096, {})
LIMITS = thresholds.load()
KEY = "sk-0123456789"
OUT_OF_REACH = "ConnectionError: Couldn't reach 'openai/gsm8k' on the Hub (LocalEntryNotFoundError)"


def _scores(task: str, metric: str, value: float) -> str:
    """The text of a harness's result file."""
    name, variant = metric.split(",")
    data = {
        "results": {task: {metric: value, f"{name}_stderr,{variant}": 0.015}},
        "n-samples": {task: {"original": 1319, "effective": 200}},
        "versions": {task: 3.0},
        "lm_eval_version": "0.4.13",
    }
    return json.dumps(data)


def _context(records: Path, deadline: float = 60.0) -> gate.Context:
    sizes = dataclasses.replace(profile.get("quick"), gate_deadline_s=deadline)
    client = Client("http://127.0.0.1:9", api_key=KEY, model="m,7")
    return gate.Context(client, FACTS, sizes, LIMITS, records=records)


Judge = Callable[..., GateResult]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Judge:
    """Runs a gate with a Python text in the place of the harness; `OUT` in it is the folder for results."""

    def judge(script: str, deadline: float = 60.0, entry: gate.Gate = accuracy_gsm8k.GATE) -> GateResult:
        def command(ctx: gate.Context, task: harness.Task, python: str, folder: Path) -> list[str]:
            return [python, "-I", "-S", "-c", f"OUT = {str(folder)!r}\nimport os, sys\n{script}"]

        monkeypatch.setattr(harness, "interpreter", lambda: sys.executable)
        monkeypatch.setattr(harness, "GRACE_S", 0.5)
        monkeypatch.setattr(harness, "command", command)
        return runner.run_one(entry, _context(tmp_path, deadline))

    return judge


def _write(scores: str) -> str:
    return f"open(OUT + '/results_1.json', 'w').write({scores!r})"


GSM8K = _scores("gsm8k", "exact_match,flexible-extract", 0.95)


def test_score_key_and_standard_error(judged: Judge) -> None:
    result = judged(f"assert os.environ['OPENAI_API_KEY'] == {KEY!r}\n{_write(GSM8K)}")
    assert result.verdict is Verdict.PASS, result.reason
    assert result.details["stderr"] == 0.015
    assert (result.details["task_version"], result.details["harness"]) == ("3.0", "0.4.13")
    assert result.measurement is not None
    assert (result.measurement.low, result.measurement.samples) == (pytest.approx(0.95 - 1.96 * 0.015), 200)


def test_what_the_harness_said_is_kept_without_the_key(judged: Judge, tmp_path: Path) -> None:
    said = "Requesting API: 1/2 [00:01]\\rsent Authorization: Bearer ' + os.environ['OPENAI_API_KEY'] + '\\x1b[0m\\n"
    first = judged(f"sys.stderr.write('{said}')\n{_write(GSM8K)}")
    log = Path(first.details["stderr_log"])
    assert log.is_relative_to(tmp_path)
    assert log.read_text() == "sent Authorization: Bearer [hidden]\\x1b[0m\n"
    second = judged(f"print('no results', {KEY!r}, file=sys.stderr)")
    assert second.verdict is Verdict.ERROR
    assert "no results [hidden]" in second.reason
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 2, "a later run writes nothing over"
    assert not any(KEY in path.read_text() for path in kept)
    assert KEY not in json.dumps(first.to_json()) + json.dumps(second.to_json())


def test_a_model_that_got_worse_fails(judged: Judge) -> None:
    result = judged(_write(GSM8K.replace("0.95", "0.5")))
    assert result.verdict is Verdict.FAIL
    assert "0.5 share, allowed is at least 0.91" in result.reason


@pytest.mark.parametrize(
    ("script", "verdict", "text"),
    [
        ("raise SystemExit('openai.AuthenticationError: 401')", Verdict.ERROR, "AuthenticationError: 401"),
        ("pass", Verdict.ERROR, "did not finish"),
        (f"raise SystemExit({OUT_OF_REACH!r})", Verdict.SKIP, "cannot reach its data sets"),
        # A hub that was asked in vain on the way is not why it ended.
        (
            f"print({OUT_OF_REACH!r}, file=sys.stderr)\nraise SystemExit('x\\n500 from the server')",
            Verdict.ERROR,
            "500",
        ),
        (_write(GSM8K.replace("0.015", '"N/A"')), Verdict.ERROR, "no exact_match,flexible-extract of gsm8k"),
        (_write(GSM8K.replace("0.95", "NaN")), Verdict.ERROR, "no exact_match,flexible-extract of gsm8k"),
        (f"print('Could not parse generations: ...', file=sys.stderr)\n{_write(GSM8K)}", Verdict.ERROR, "1 replies"),
    ],
)
def test_what_keeps_the_harness_from_a_score(judged: Judge, script: str, verdict: Verdict, text: str) -> None:
    result = judged(script)
    assert result.verdict is verdict
    assert text in result.reason


def test_a_harness_that_hangs_is_ended(judged: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            started.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(harness.subprocess, "Popen", Noted)
    result = judged("import time\ntime.sleep(60)", deadline=0.6)
    assert result.verdict is Verdict.ERROR
    assert "did not end in time" in result.reason
    assert [process.poll() is None for process in started] == [False]


def test_a_score_is_held_to_the_first_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def again(value: float) -> GateResult:
        score = harness.Score(value, 0.02, 200, "3.1", "0.4.13")
        monkeypatch.setattr(harness, "run", lambda ctx, name, task: (score, {}))
        return runner.run_one(accuracy_math500.GATE, _context(tmp_path))

    assert (again(0.0).verdict, again(0.8).verdict) == (Verdict.FAIL, Verdict.SKIP), "nothing right is no record"
    assert again(0.75).verdict is Verdict.PASS
    assert again(0.95).verdict is Verdict.PASS
    fallen = again(0.7)
    assert fallen.verdict is Verdict.FAIL
    assert "0.1 share lost, allowed is at most 0.09" in fallen.reason


def test_without_the_extra_its_command_is_named(monkeypatch: pytest.MonkeyPatch, find_harness: Any) -> None:
    monkeypatch.setattr(environment, "problem", lambda env: "not built")
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(gate.Skip, match=r"`accuracy` is not built; `python -m scripts env accuracy` builds it"):
        find_harness()
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: object())
    assert find_harness() == sys.executable


def test_the_command_line_names_the_server_and_no_key(tmp_path: Path) -> None:
    ctx = _context(tmp_path)
    task = harness.Task("gsm8k", "exact_match,none", 7, 64, shots=3)
    words = harness.command(ctx, task, "py", tmp_path)
    assert "--model_args" in words
    arguments = words[words.index("--model_args") + 1]
    assert "model='m,7',base_url='http://127.0.0.1:9/v1/chat/completions'" in arguments
    assert "until=[]" in words[words.index("--gen_kwargs") + 1]
    assert KEY not in " ".join(words)


def test_a_password_in_the_address_cannot_be_passed_on(judged: Judge, tmp_path: Path) -> None:
    client = Client("http://user:password@127.0.0.1:9")
    judged("pass")
    result = runner.run_one(accuracy_gsm8k.GATE, dataclasses.replace(_context(tmp_path), client=client))
    assert result.verdict is Verdict.SKIP
    assert "no password" in result.reason


def test_every_looked_up_fact_is_in_its_prompt(healthy: tuple[gate.Context, dict]) -> None:
    ctx, _ = healthy
    sizes = dataclasses.replace(ctx.profile, samples=1)
    items = accuracy_lookup.documents(dataclasses.replace(ctx, profile=sizes))
    assert len({item["prompt"] for item in items}) == 4
    for item in items:
        key = item["prompt"][-3:-1]
        assert f"{key}={item['value']};" in item["prompt"]
