# SPDX-License-Identifier: Apache-2.0
"""The accuracy gates with the real lm-evaluation-harness: green on a server that can, red on its spoiled copy.

Data sets are out of reach here: problems of our own, in the files and fields of the published ones, stand in their
place, found as the harness finds any local copy. Task, prompt, filters, metric and standard error are the harness's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import gate, harness, records
from gates.core.result import GateResult, Verdict

pytestmark = pytest.mark.long
GATES = gate.discover()
KEY = "sk-0123456789"
PROBLEMS = [(a, b) for a in (3, 14, 25) for b in (4, 6, 9, 11)]


@pytest.fixture(autouse=True)
def _harness(find_harness: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The harness, in an empty folder, with no hub to ask and no data set of an earlier run."""
    try:
        find_harness()
    except gate.Skip as skip:
        pytest.skip(str(skip))
    monkeypatch.setattr(harness, "interpreter", find_harness)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def _put(name: str, config: str, splits: dict[str, list[dict[str, str]]]) -> None:
    """A local copy of a data set."""
    folder = Path(name)
    folder.mkdir(parents=True)
    listed = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{listed}---\n")
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _gsm8k() -> None:
    rows = [
        {
            "question": f"Ann has {a} pens and buys {b} more. How many pens has she?",
            "answer": f"She has {a} + {b} = {a + b} pens.\n#### {a + b}",
        }
        for a, b in PROBLEMS
    ]
    _put("openai/gsm8k", "main", {"train": rows, "test": rows})


def _math500() -> None:
    rows = [
        {"problem": f"What is ${a} + {b}$?", "solution": f"It is $\\boxed{{{a + b}}}$.", "answer": str(a + b)}
        for a, b in PROBLEMS
    ]
    _put("HuggingFaceH4/MATH-500", "default", {"test": rows})


def _sum(path: str, body: dict, answer: dict) -> dict:
    """A model that adds the two numbers of the last message, and writes the sum as a fraction where a formula asks."""
    for choice in answer.get("choices") or []:
        text = body["messages"][-1]["content"]
        a, b = map(int, re.findall(r"\d+", text))
        choice["message"]["content"] = (
            f"The final answer is $\\frac{{{2 * (a + b)}}}{{2}}$." if "$" in text else f"{a} + {b}. #### {a + b}"
        )
    return answer


@pytest.fixture
def adder(good_server: str) -> Iterator[str]:
    server, address = proxy.serve(good_server, Fault("adder", "adds", reply=_sum))
    yield address
    server.shutdown()


def _judge(address: str, name: str, folder: Path) -> GateResult:
    seen: dict[str, GateResult] = {}
    matrix.verdicts(matrix.context(address, folder, profile_name="quick"), [GATES[name]], seen)
    return seen[name]


def test_gsm8k_is_green_and_red_when_answers_end_early(adder: str, tmp_path: Path) -> None:
    _gsm8k()
    good = _judge(adder, "accuracy-gsm8k", tmp_path)
    assert good.verdict is Verdict.PASS, good.reason
    assert good.measurement is not None
    assert (good.measurement.value, good.measurement.samples) == (1.0, len(PROBLEMS))
    assert Path(good.details["stderr_log"]).read_text()
    bad = matrix.spoiled(adder, "early-stop", tmp_path, [GATES["accuracy-gsm8k"]], profile_name="quick")
    assert matrix.missed("early-stop", bad, {"accuracy-gsm8k"}) == {}, bad


def test_math_is_compared_as_mathematics_and_held_to_its_first_score(adder: str, tmp_path: Path) -> None:
    _math500()
    first = _judge(adder, "accuracy-math500", tmp_path)
    assert first.reason == records.NOTHING_YET
    assert first.details["score"] == 1.0
    assert _judge(adder, "accuracy-math500", tmp_path).verdict is Verdict.PASS
    bad = matrix.spoiled(adder, "early-stop", tmp_path, [GATES["accuracy-math500"]], profile_name="quick")
    assert matrix.missed("early-stop", bad, {"accuracy-math500"}) == {}, bad


def test_lookup_needs_no_hub_and_is_red_when_the_context_is_lost(good_server: str, tmp_path: Path) -> None:
    seen: dict[str, GateResult] = {}
    matrix.verdicts(matrix.context(good_server, tmp_path), [GATES["accuracy-lookup"]], seen)
    good = seen["accuracy-lookup"]
    assert good.verdict is Verdict.PASS, good.reason
    assert good.measurement is not None
    assert (good.measurement.value, good.measurement.samples) == (1.0, 32)
    bad = matrix.spoiled(good_server, "blind-context", tmp_path, [GATES["accuracy-lookup"]])
    assert matrix.missed("blind-context", bad, {"accuracy-lookup"}) == {}, bad


@pytest.mark.parametrize(("offline", "name"), [("0", "accuracy-gsm8k"), ("1", "accuracy-math500")])
def test_a_hub_out_of_reach_is_a_skip(
    adder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: str, name: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    seen = _judge(adder, name, tmp_path)
    assert seen.verdict is Verdict.SKIP, seen.reason
    assert "cannot reach its data sets" in seen.reason
    print(seen.reason)


@pytest.mark.parametrize("text", [b"Unauthorized", b'{"detail": "hello"}'])
def test_a_server_that_refuses_is_an_error_and_the_key_stays_hidden(
    good_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        if "/chat/" not in path:
            return None
        return (401, "text/plain", text) if text == b"Unauthorized" else (200, "application/json", text)

    _gsm8k()
    server, address = proxy.serve(good_server, Fault("refuses", "refuses", raw=raw))
    ctx = matrix.context(address, tmp_path, profile_name="quick")
    ctx.client.api_key = KEY
    seen: dict[str, GateResult] = {}
    matrix.verdicts(ctx, [GATES["accuracy-gsm8k"]], seen)
    server.shutdown()
    result = seen["accuracy-gsm8k"]
    assert result.verdict is Verdict.ERROR, result.reason
    kept = next((tmp_path / "stderr").iterdir()).read_text()
    assert ("401" if text == b"Unauthorized" else harness.NO_ANSWER) in kept
    assert KEY not in kept + json.dumps(result.to_json())
