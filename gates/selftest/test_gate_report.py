# SPDX-License-Identifier: Apache-2.0
"""The report: self-contained, escapes what it is given, compares ledgers, draws thresholds and floors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.core import ledger
from gates.core.result import GateResult, Measurement, Verdict

HEADER = {
    "base_url": "http://host:8000",
    "profile": "node",
    "server": {
        "model": "<b>beam</b>",
        "version": "0.26.0+frontier.abcdef012345",
        "lock_hash": "abcdef012345",
        "max_model_len": 262144,
    },
    "server_args": "--tensor-parallel-size 8 <script>alert(1)</script>",
}
RUNGS = {
    "2048": {"mean": 0.01, "p50": 0.004, "p99": 0.04, "max": 0.1},
    "250000": {"mean": 0.06, "p50": 0.01, "p99": 0.2, "max": 1},
}


def _ledger(path: Path, value: float, verdict: Verdict = Verdict.PASS) -> Path:
    writer = ledger.Writer(path)
    run = writer.start(HEADER)
    reason = "" if verdict is Verdict.PASS else "0.06 nats, allowed is at most 0.05 | <i>"
    writer.add(
        run,
        GateResult(
            "decode-vs-prefill", verdict, reason, Measurement(value, "nats", value / 2, value * 2, 40),
            0.05, "max", "port page", noise_floor=0.002, details={"rungs": RUNGS},
        ),
    )  # fmt: skip
    writer.add(
        run,
        GateResult(
            "needles",
            Verdict.PASS,
            "",
            Measurement(1.0, "share", 0.8, 1.0, 9),
            0.95,
            "min",
            "s",
            details={"rungs": {"2048": {"0.1": True, "0.9": True}}},
        ),
    )
    writer.add(
        run,
        GateResult("api-chat", Verdict.PASS, details={"checks": {"006 basic": "", "009 system": "skip: weak model"}}),
    )
    writer.add(run, GateResult("accuracy-gsm8k", Verdict.SKIP, "harness not installed"))
    writer.end(run)
    writer.close()
    return path


def test_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    path = _ledger(tmp_path / "l.jsonl", 0.06, Verdict.FAIL)
    assert cli.main(["report", "--ledger", str(path), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r"(src|href)=\"http", text)
    assert "<script" not in text
    assert "<b>beam</b>" not in text
    assert "Not fit: 1 failed." in text
    assert text.count("<svg") == 2
    assert "max 0.05" in text
    assert "noise floor" in text
    assert "harness not installed" in text
    assert "skip: weak model" in text
    plain = (tmp_path / "out" / "report.md").read_text()
    assert "| decode-vs-prefill | FAIL | 0.06 nats [0.03, 0.12] | at most 0.05 | 0.002 |  |" in plain
    assert "| 250000 | FAIL | not run |" in plain
    assert "at most 0.05 \\| &lt;i&gt;" in plain


def test_report_is_deterministic(tmp_path: Path) -> None:
    path = _ledger(tmp_path / "l.jsonl", 0.01)
    for name in ("a", "b"):
        cli.main(["report", "--ledger", str(path), "--out", str(tmp_path / name)])
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()


def test_compare_names_changed_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before, after = _ledger(tmp_path / "a.jsonl", 0.01), _ledger(tmp_path / "b.jsonl", 0.06, Verdict.FAIL)
    assert cli.main(["compare", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    assert (
        "| decode-vs-prefill | pass 0.01 nats [0.005, 0.02] | FAIL 0.06 nats [0.03, 0.12] | +0.05 | verdict changed |"
        in out
    )


def test_a_newer_ledger_and_an_empty_one_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    newer, empty = tmp_path / "n.jsonl", tmp_path / "e.jsonl"
    newer.write_text('{"kind": "run", "schema": 99}\n')
    empty.write_text("")
    assert cli.main(["report", "--ledger", str(newer)]) == 2
    assert "schema 99 is newer" in capsys.readouterr().err
    assert cli.main(["report", "--ledger", str(empty)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_documented_tables_are_the_real_ones() -> None:
    from gates.core import docs

    text = (Path(__file__).resolve().parents[2] / "docs" / "gates.md").read_text()
    assert text.split(docs.BEGIN)[1].split(docs.END)[0].strip() == docs.tables()


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = _ledger(tmp_path / "l.jsonl", 0.01)
    assert cli.main(["report", "--ledger", str(path), "--out", str(path)]) == 2
    assert "cannot write the report" in capsys.readouterr().err
