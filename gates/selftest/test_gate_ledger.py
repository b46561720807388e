# SPDX-License-Identifier: Apache-2.0
"""Ledger: append, resume, torn lines, newer schemas, damage; each message names file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates.core import ledger
from gates.core.errors import GateError
from gates.core.result import GateResult, Measurement, Verdict

IDENTITY = {"base_url": "http://h", "profile": "tiny", "server": {"model": "m"}, "server_args": ""}


def _filled(path: Path) -> ledger.Run:
    writer = ledger.Writer(path)
    run = writer.start(IDENTITY)
    writer.add(
        run,
        GateResult(
            "a",
            Verdict.PASS,
            measurement=Measurement(0.5, "nats", 0.4, 0.6, 9),
            threshold=1.0,
            threshold_direction="max",
        ),
    )
    writer.add(run, GateResult("b", Verdict.FAIL, "too much"))
    writer.add(run, GateResult("c", Verdict.ERROR, "server died"))
    return run


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "l.jsonl"
    run = _filled(path)
    (read,) = ledger.load(path)
    assert read.results == run.results
    assert read.header["base_url"] == "http://h"


def test_resume_keeps_what_finished_and_repeats_what_broke(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    _filled(path)
    again = ledger.resumable(path, IDENTITY)
    assert again is not None
    assert set(again.results) == {"a", "b"}
    assert ledger.resumable(path, {**IDENTITY, "profile": "node"}) is None


def test_torn_last_line_is_dropped_and_cut_on_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    run = _filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "result", "gate": "d", "ver')
    assert set(ledger.load(path)[0].results) == {"a", "b", "c"}
    ledger.Writer(path).add(run, GateResult("d", Verdict.PASS))
    assert path.read_bytes().startswith(whole)
    assert set(ledger.load(path)[0].results) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "result", "schema": 99, "gate": "x", "verdict": "PASS"}', "is newer than"),
        ('{"kind": "result", "gate": "x"}', "no schema version"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "MAYBE"}', "not a gate result"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "PASS", "colour": 1}', "unknown field `colour`"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "FAIL"}', "without a reason"),
        ('{"kind": "poem", "schema": 1}', "unknown line kind"),
        ("[]", "not a JSON object"),
        ("nonsense", "not a JSON object"),
    ],
)
def test_damage_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "l.jsonl"
    _filled(path)
    with path.open("a") as out:
        out.write(line + "\n")
    with pytest.raises(GateError, match=message) as caught:
        ledger.load(path)
    assert f"{path}:5" in str(caught.value)


def test_result_before_a_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(json.dumps({"kind": "result", "schema": 1, "gate": "a", "verdict": "PASS"}) + "\n")
    with pytest.raises(GateError, match="before any run header"):
        ledger.load(path)


def test_unwritable_ledger_says_so(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.mkdir()
    with pytest.raises(GateError, match="cannot write the ledger"):
        ledger.Writer(path).start(IDENTITY)
