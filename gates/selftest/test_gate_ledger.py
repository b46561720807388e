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


def _filled(path: Path, *, end: bool = False) -> ledger.Run:
    with ledger.Writer(path) as writer:
        run = _results(writer)
        if end:
            writer.end(run)
    return run


def _resumable(path: Path, identity: dict, **options: bool) -> ledger.Run | None:
    with ledger.Writer(path) as writer:
        return writer.resumable(identity, **options)


def _results(writer: ledger.Writer) -> ledger.Run:
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
    writer.add(run, GateResult("s", Verdict.SKIP, "no reference"))
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
    again = _resumable(path, IDENTITY)
    assert again is not None
    assert set(again.results) == {"a", "b"}
    assert _resumable(path, {**IDENTITY, "profile": "node"}) is None


def test_a_run_that_ended_is_resumed_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    _filled(path, end=True)
    assert _resumable(path, IDENTITY) is None
    again = _resumable(path, IDENTITY, again=True)
    assert again is not None
    assert set(again.results) == {"a", "b"}
    assert [run.ended for run in ledger.load(path)] == [True]


def test_schema_1_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    _filled(path)
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 1'))
    assert len(ledger.load(path)[0].results) == 4


def test_two_runs_do_not_share_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    with ledger.Writer(path):
        with pytest.raises(GateError, match="another run is writing"):
            ledger.Writer(path)
    ledger.Writer(path).close()


@pytest.mark.parametrize("text", ["my only notes", '{"a": 1}', "# Title\n\nText\n", '{"kind": "run", "schema": 99}\n'])
def test_a_file_that_is_no_ledger_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(GateError):
        ledger.Writer(path)
    assert path.read_text() == text


def test_a_whole_line_without_its_newline_never_counted(tmp_path: Path) -> None:
    """What a resumed run keeps is what the file keeps."""
    path = tmp_path / "l.jsonl"
    _filled(path)
    path.write_bytes(path.read_bytes()[:-1])
    with ledger.Writer(path) as writer:
        assert writer.torn
        assert set(writer.runs[0].results) == {"a", "b", "c"}
        writer.add(writer.runs[0], GateResult("d", Verdict.PASS))
    assert set(ledger.load(path)[0].results) == {"a", "b", "c", "d"}


def test_results_of_runs_that_asked_the_same_are_shown_together(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    _filled(path, end=True)
    with ledger.Writer(path) as writer:
        writer.add(writer.start({**IDENTITY, "profile": "node"}), GateResult("x", Verdict.PASS))
        writer.add(writer.start(IDENTITY), GateResult("b", Verdict.PASS))
    run = ledger.newest(ledger.load(path))
    assert set(run.results) == {"a", "b", "c", "s"}
    assert run.results["b"].verdict is Verdict.PASS
    assert "from the run of" in run.results["a"].reason
    assert run.results["b"].reason == ""


def test_torn_last_line_is_dropped_and_cut_on_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    run = _filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "result", "gate": "d", "ver')
    assert set(ledger.load(path)[0].results) == {"a", "b", "c", "s"}
    with ledger.Writer(path) as writer:
        assert writer.torn
        writer.add(run, GateResult("d", Verdict.PASS))
    assert path.read_bytes().startswith(whole)
    assert set(ledger.load(path)[0].results) == {"a", "b", "c", "d", "s"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "result", "schema": 99, "gate": "x", "verdict": "PASS"}', "is newer than"),
        ('{"kind": "result", "gate": "x"}', "no schema version"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "MAYBE"}', "not a gate result"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "PASS", "colour": 1}', "unknown field `colour`"),
        ('{"kind": "result", "schema": 1, "gate": "x", "verdict": "FAIL"}', "without a reason"),
        ('{"kind": "poem", "schema": 1}', "unknown line kind"),
        ('{"kind": "result", "schema": 0, "gate": "x", "verdict": "PASS"}', "schema 0 is unknown"),
        ('{"kind": "result", "schema": true, "gate": "x", "verdict": "PASS"}', "no schema version"),
        ('{"kind": "result", "schema": 2, "gate": 5, "verdict": "PASS"}', "`gate` is 5"),
        ('{"kind": "result", "schema": 2, "gate": "x", "verdict": "PASS", "details": []}', r"`details` is \[\]"),
        ('{"kind": "result", "schema": 2, "gate": "x", "verdict": "PASS", "threshold": "1"}', "`threshold` is '1'"),
        ('{"kind": "result", "schema": 2, "gate": "x", "verdict": "PASS", "duration_s": NaN}', "`duration_s` is nan"),
        ('{"kind": "run", "schema": 2, "server": 7}', "`server` is no object"),
        ("[" * 100_000, "not a JSON object"),
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
    assert f"{path}:6" in str(caught.value)


def test_result_before_a_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(json.dumps({"kind": "result", "schema": 1, "gate": "a", "verdict": "PASS"}) + "\n")
    with pytest.raises(GateError, match="before any run header"):
        ledger.load(path)


def test_unwritable_ledger_says_so(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.mkdir()
    (tmp_path / "file").touch()
    for place in (path, tmp_path / "file" / "l.jsonl"):
        with pytest.raises(GateError, match="cannot write the ledger"):
            ledger.Writer(place)
