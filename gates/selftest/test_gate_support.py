# SPDX-License-Identifier: Apache-2.0
"""The support matrix says what the verdicts say, of one build, and whose it is."""

from __future__ import annotations

from typing import Any

from gates.core.ledger import Run
from gates.core.result import GateResult, Measurement, Verdict
from gates.report import support
from gates.report.support import Matrix


def _run(lock: str, *results: GateResult, profile: str = "node", started: str = "1") -> Run:
    header = {"started": started, "profile": profile, "server": {"model": "beam", "lock_hash": lock}}
    return Run(header, {result.gate: result for result in results}, ended=True)


def _result(verdict: Verdict, rungs: dict[str, Any], gate: str = "needles", limit: float = 0.95) -> GateResult:
    reason = "" if verdict is Verdict.PASS else "why"
    measured = Measurement(0.9, "share", 0.8, 1.0, 9)
    return GateResult(gate, verdict, reason, measured, limit, "min", "s", details={"rungs": rungs})


GOOD = _result(Verdict.PASS, {"2048": {"0.1": True}, "250000": {"0.1": True}})


def _of(*runs: Run) -> Matrix:
    (matrix,) = support.matrices(runs)
    return matrix


def test_a_gate_that_broke_is_not_what_an_earlier_build_was() -> None:
    broke = GateResult("needles", Verdict.ERROR, "server died at 250000 tokens")
    copied = _result(Verdict.PASS, {"2048": "64/64"}, "copy")
    assert _of(_run("a", GOOD), _run("b", broke)).rows == (("any", ("ERROR",)),)
    both = _of(_run("a", GOOD), _run("b", broke, copied))
    assert both.gates == ("copy", "needles")
    assert both.rows == (("2048", ("pass", "ERROR")),)
    assert "lock b" in both.of
    skipped = GateResult("needles", Verdict.SKIP, "no rung fits")
    assert _of(_run("a", GOOD), _run("b", skipped)).rows == (("any", ("skipped",)),)


def test_a_length_is_held_to_no_more_than_its_gate() -> None:
    ruler = _result(Verdict.PASS, {"2048": "6/6", "32768": "5/6"}, "ruler-multi-key", 0.9)
    assert _of(_run("a", ruler)).rows == (("2048", ("pass",)), ("32768", ("pass",)))


def test_where_a_gate_failed_the_lengths_beyond_the_limit_did() -> None:
    some = _result(Verdict.FAIL, {"2048": "6/6", "32768": "1/6"})
    assert _of(_run("a", some)).rows == (("2048", ("pass",)), ("32768", ("FAIL",)))
    for_no_length = _result(Verdict.FAIL, {"2048": "6/6", "32768": "6/6"})
    assert _of(_run("a", for_no_length)).rows == (("2048", ("FAIL",)), ("32768", ("FAIL",)))


def test_profiles_are_apart_and_lengths_in_order() -> None:
    runs = (_run("a", GOOD), _run("a", _result(Verdict.PASS, {"192": "1/1", "96": "1/1"}), profile="tiny"))
    node, tiny = support.matrices(runs)
    assert [rung for rung, _ in node.rows] == ["2048", "250000"]
    assert [rung for rung, _ in tiny.rows] == ["96", "192"]
    assert "profile tiny" in tiny.of


def test_earlier_runs_of_the_same_server_fill_up() -> None:
    copied = _result(Verdict.PASS, {"2048": "64/64"}, "copy")
    assert _of(_run("a", GOOD), _run("a", copied, started="2")).gates == ("copy", "needles")
    assert _of(_run("a", GOOD), _run("b", copied, started="2")).gates == ("copy",)


def test_no_gate_by_length_no_matrix() -> None:
    assert support.matrices([_run("a", GateResult("api-chat", Verdict.PASS))]) == []
