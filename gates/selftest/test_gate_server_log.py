# SPDX-License-Identifier: Apache-2.0
"""Gates that read the server's log: the last start counts, missing ranks are an error, eager servers are skipped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gates.controls import toy_server
from gates.core import gate, records
from gates.core.result import Verdict
from gates.core.runner import run_one

GATES = gate.discover()
START = "INFO [core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: model='m', enforce_eager={}, seed=0\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
COLD = "WARNING [hpu_model_runner.py:3588] Configuration: ('decode', 8, 1, 128) was not warmed-up!\n"


def _hashes(*digits: str, ranks: int = 2) -> str:
    line = "INFO [state_hash.py:70] state hash of tensor-parallel rank {} of {}: {} (9 parameters, 1 bytes)\n"
    return "".join(line.format(rank, ranks, digit * 64) for rank, digit in enumerate(digits))


def _run(healthy, tmp_path: Path, name: str, text: str):
    log = tmp_path / "server.log"
    log.write_text(text)
    return run_one(GATES[name], dataclasses.replace(healthy[0], server_log=log, records=tmp_path / "c"))


def test_loaded_state_is_recorded_and_compared(healthy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(toy_server.CARD, "state_hash")
    whole = START.format(False) + _hashes("a", "b") + READY
    first = _run(healthy, tmp_path, "loader-state", whole)
    assert (first.verdict, first.reason) == (Verdict.SKIP, records.NOTHING_YET)
    assert _run(healthy, tmp_path, "loader-state", whole).verdict is Verdict.PASS
    assert _run(healthy, tmp_path, "loader-state", _hashes("c", "d") + whole).verdict is Verdict.PASS
    other = _run(healthy, tmp_path, "loader-state", whole + START.format(False) + _hashes("a", "c") + READY)
    assert other.verdict is Verdict.FAIL
    assert "differs from the recorded" in other.reason
    part = _run(healthy, tmp_path, "loader-state", START.format(False) + _hashes("a"))
    assert part.verdict is Verdict.ERROR
    assert "1 ranks of 2" in part.reason
    assert "STATE_HASH=1" in _run(healthy, tmp_path, "loader-state", START + READY).reason


@pytest.mark.parametrize(
    ("text", "verdict", "reason"),
    [
        (START.format(False) + COLD + READY, Verdict.PASS, ""),
        (START.format(False) + READY + COLD, Verdict.FAIL, "1 count, allowed is at most 0"),
        (START.format(False) + READY + COLD + START.format(False) + READY, Verdict.PASS, ""),
        (START.format(True) + READY + COLD, Verdict.SKIP, "nothing is compiled"),
        (START.format(False), Verdict.ERROR, "does not say that the server is up"),
    ],
)
def test_configurations_met_after_the_warm_up(
    healthy, tmp_path: Path, text: str, verdict: Verdict, reason: str
) -> None:
    ctx = healthy[0]
    without = dataclasses.replace(ctx, client=_Metricless(ctx.client))
    result = _run((without, None), tmp_path, "compiles-after-ready", text)
    assert result.verdict is verdict
    assert reason in result.reason


class _Metricless:
    """The good server without a metrics page."""

    api_key = ""

    def __init__(self, client) -> None:
        self._client = client

    def ending(self, seconds: float) -> _Metricless:
        return self

    def request(self, method: str, path: str, *args, **options):
        return self._client.request(method, "/no-such-page" if path == "/metrics" else path, *args, **options)
