# SPDX-License-Identifier: Apache-2.0
"""Which run a command goes on with: the same command's, whatever was asked since, and not one of the day before."""

from __future__ import annotations

import datetime
import json
import resource
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls import proxy
from gates.controls.faults import Fault
from gates.core import exits, ledger
from gates.core.errors import GateError
from gates.core.result import GateResult, Verdict

FULL = {"base_url": "http://h", "only": []}
CANARY = {**FULL, "only": ["canary"]}


def _killed(path: Path) -> None:
    """A ledger whose full run was killed after its first gate."""
    with ledger.Writer(path) as writer:
        writer.add(writer.start(FULL), GateResult("canary", Verdict.PASS))


def test_another_choice_of_gates_is_another_run(tmp_path: Path) -> None:
    _killed(tmp_path / "l")
    with ledger.Writer(tmp_path / "l") as writer:
        assert writer.resumable(CANARY) is None
        assert writer.resumable(FULL) is not None


def test_a_killed_run_is_gone_on_with_after_another_command(tmp_path: Path) -> None:
    path = tmp_path / "l"
    _killed(path)
    with ledger.Writer(path) as writer:
        between = writer.start(CANARY)
        writer.add(between, GateResult("canary", Verdict.FAIL, "1 nat"))
        writer.end(between)
    with ledger.Writer(path) as writer:
        kept = writer.resumable(FULL)
        assert kept is not None
        run = writer.resume(kept)
        writer.add(run, GateResult("copy", Verdict.PASS))
        writer.end(run)
    runs = ledger.load(path)
    assert [sorted(r.results) for r in runs] == [["canary"], ["canary"], ["canary", "copy"]]
    assert "from the run of" in runs[2].results["canary"].reason
    assert runs[1].results["canary"].verdict is Verdict.FAIL, "the run in between keeps its own"
    with ledger.Writer(path) as writer:
        assert writer.resumable(FULL) is None, "it ended"


def test_going_on_with_a_run_does_not_make_it_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, now = tmp_path / "l", datetime.datetime.now(datetime.timezone.utc)
    for hours in (40, 20):
        at = (now - datetime.timedelta(hours=hours)).isoformat(timespec="seconds")
        monkeypatch.setattr(ledger, "_now", lambda at=at: at)
        with ledger.Writer(path) as writer:
            kept = writer.resumable(FULL)
            run = writer.start(FULL) if kept is None else writer.resume(kept)
            if kept is None:
                writer.add(run, GateResult("copy", Verdict.PASS))
            writer.end(writer.start(CANARY))
    with ledger.Writer(path) as writer:
        last = writer.resumable(FULL)
        assert last is not None
        assert last.header["started"] != last.header["since"]
        assert last.stale


def test_runs_of_other_gates_are_still_shown_together(tmp_path: Path) -> None:
    _killed(tmp_path / "l")
    with ledger.Writer(tmp_path / "l") as writer:
        writer.add(writer.start({**FULL, "only": ["copy"]}), GateResult("copy", Verdict.PASS))
    assert set(ledger.newest(ledger.load(tmp_path / "l")).results) == {"canary", "copy"}


@pytest.mark.parametrize(("hours", "took_hours", "stale"), [(23, 0, False), (25, 0, True), (25, 3, False)])
def test_a_run_is_as_old_as_its_last_result(hours: float, took_hours: float, stale: bool) -> None:
    started = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours)
    result = GateResult("a", Verdict.PASS, duration_s=3600 * took_hours)
    assert ledger.Run({"started": started.isoformat()}, {"a": result}).stale is stale


@pytest.mark.parametrize("started", [None, "yesterday", "2026-01-01T00:00:00", 5])
def test_a_run_of_unknown_age_is_stale(started: object) -> None:
    assert ledger.Run({"started": started}).stale


def _argv(address: str, path: Path, *only: str) -> list[str]:
    argv = ["run", "--base-url", address, "--profile", "stand-in", "--ledger", str(path)]
    return [*argv, *(word for name in only for word in ("--only", name))]


def test_a_gate_in_a_cron_job_speaks_of_the_server_of_today(good_server: str, tmp_path: Path) -> None:
    """Another command was killed after this one's gate had passed, and the server has gone wrong since."""
    wrong: list[bool] = []

    def page(path: str, text: str) -> str:
        return text.replace('num_gpu_blocks="64"', 'num_gpu_blocks="32"') if wrong else text

    server, address = proxy.serve(good_server, Fault("turns", "goes wrong while it is up", page=page))
    path = tmp_path / "l.jsonl"
    both = _argv(address, path, "kv-blocks", "compiles-after-ready")
    assert [cli.main(_argv(address, path, "kv-blocks")), cli.main(both)] == [0, 0]
    lines = path.read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["kind"] == "end"
    path.write_text("".join(lines[:-1]))  # as if killed
    wrong.append(True)
    assert cli.main(_argv(address, path, "kv-blocks")) == exits.EXIT_FAIL
    server.shutdown()


def test_an_old_run_is_named_and_not_gone_on_with(
    good_server: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "l.jsonl"
    argv = _argv(good_server, path, "loader-state")
    cli.main(argv)
    first = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**first, "started": "2026-01-01T00:00:00+00:00"}) + "\n")
    cli.main(argv)
    assert "the killed run of 2026-01-01T00:00:00+00:00 is too old" in capsys.readouterr().err
    assert len(ledger.load(path)) == 2


def test_a_full_disk_leaves_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l"
    _killed(path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger.os, "fsync", full)
    with pytest.raises(GateError, match="No space left on device"), ledger.Writer(path) as writer:
        writer.start(FULL)
    assert path.read_bytes() == before


def test_a_disk_that_fills_within_a_line_is_told_once(tmp_path: Path) -> None:
    """Nothing is held back to fail again, without its sentence, when the file is closed."""
    path = tmp_path / "l"
    _killed(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = ledger.Writer(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(GateError, match="cannot write the ledger"):
            writer.start(FULL)
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


def test_a_report_that_cannot_be_written_hides_no_verdict(good_server: str, tmp_path: Path) -> None:
    server, address = proxy.serve(good_server, Fault("f", "no version", told=lambda path, told: {**told, "version": 0}))
    (tmp_path / "file").touch()
    argv = [*_argv(address, tmp_path / "l", "api-models"), "--report", str(tmp_path / "file" / "out")]
    assert cli.main(argv) == exits.EXIT_FAIL
    server.shutdown()


def test_a_torn_header_alone_is_an_empty_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l"
    _killed(path)
    path.write_bytes(path.read_bytes()[:40])
    with ledger.Writer(path) as writer:
        assert writer.torn
        writer.end(writer.start(FULL))
    assert [run.ended for run in ledger.load(path)] == [True]


class _Closed:
    """A stream whose reader has gone."""

    def __init__(self, file) -> None:
        self._file = file

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        """Nothing is held."""

    def fileno(self) -> int:
        return self._file.fileno()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_went_away_changes_no_exit_code(
    good_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with open(tmp_path / "pipe", "w") as file:
        monkeypatch.setattr(cli.sys, name, _Closed(file))
        assert cli.main(_argv(good_server, tmp_path / "l", "kv-blocks")) == 0
        monkeypatch.undo()
