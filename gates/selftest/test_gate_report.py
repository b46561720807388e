# SPDX-License-Identifier: Apache-2.0
"""The report: self-contained, escapes what it is given, compares ledgers, draws thresholds and floors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.core import ledger
from gates.core.result import GateResult, Measurement, Verdict
from gates.report import collect, plots, render

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


HOSTILE = r"""a | b \| c ![p](http://h/x.png) [x](javascript:1) [y\](z) *b* _i_ `c` ~~d~~ # e <img> $\frac$"""


def test_a_servers_text_is_no_markup_in_the_table(tmp_path: Path) -> None:
    """Read as GitHub does: a backslash takes the next character's meaning away."""
    text = collect.cell(HOSTILE)
    bare = re.sub(r"\\.", "", text)
    assert not re.search(r"[|`*~<>]|\]\(|\b_|_\b", bare)
    assert re.sub(r"\\(.)", r"\1", text) == HOSTILE.replace("<", "&lt;").replace(">", "&gt;"), "nothing is lost"
    assert collect.cell("0.06 nats [0.03, 0.12] of max_model_len") == "0.06 nats [0.03, 0.12] of max_model_len"


@pytest.mark.parametrize(("unit", "mean"), [("$\\frac$", 0.01), ("nats", 10**400), ("nats", 1e308)])
def test_odd_figures_and_formulas_are_drawn_as_they_are(unit: str, mean: float) -> None:
    rungs = {"96": {"mean": mean, "p50": mean, "p99": mean}, "192": {"mean": 0.1, "p50": 0, "p99": 0.1}}
    result = GateResult(
        "g$\\frac$", Verdict.PASS, "", Measurement(0.1, unit), 0.5, "max", "s", details={"rungs": rungs}
    )
    seen = collect.series(result)
    assert seen is not None
    assert len(seen.rungs) == (1 if mean == 10**400 else 2)
    assert r"g$\frac$" in plots.svg(seen)


def test_both_files_are_of_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _ledger(tmp_path / "l.jsonl", 0.01)
    render.write(path, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(plots, "svg", lambda series: 1 // 0)
    path = _ledger(tmp_path / "l.jsonl", 0.06, Verdict.FAIL)
    with pytest.raises(ZeroDivisionError):
        render.write(path, tmp_path)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before | {path.name: path.read_bytes()}


def test_why_is_no_source_and_figures_have_their_unit(tmp_path: Path) -> None:
    measured = Measurement(0.0, "of 15 checks", 2.78e-17, 0.299, 15)
    known = {"control": "unconstrained-json"}
    result = GateResult("api", Verdict.PASS, "", measured, 1, "min", "open report of a fault", control=9, details=known)
    row = collect.row(result)
    assert (row.value, row.control) == ("0 of 15 checks [0, 0.299]", "9 of 15 checks (unconstrained-json)")
    with ledger.Writer(tmp_path / "l.jsonl") as writer:
        run = writer.start(HEADER)
        writer.add(run, result)
    page = collect.page([run] * 150)
    assert len(page.history) == 100
    lines = render.markdown(page).splitlines()
    assert [line.split(" | ")[-2:] for line in lines if line.startswith("| api")] == [["", "open report of a fault |"]]
    text = render.html(page)
    assert '<td class="why"></td>' in text
    assert "50 earlier ones are in the ledger" in text
    assert text.index("Where the limits come from") < text.index("open report of a fault")
