# SPDX-License-Identifier: Apache-2.0
"""Every gate against servers that are none any more: ERROR with a reason, in time, and the run goes on."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import pytest

from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import exits, gate, ledger, runner
from gates.core.client import Client
from gates.core.result import Verdict

GATES = list(gate.discover().values())
DEADLINE, GATE_DEADLINE = 0.5, 2.0


def _die(path: str, body: dict) -> None:
    raise ConnectionResetError


def _hang(path: str, body: dict) -> None:
    time.sleep(2 * GATE_DEADLINE)


def _die_after(requests: int):
    served = itertools.count()

    def raw(path: str, body: dict) -> None:
        if next(served) >= requests:
            raise ConnectionResetError

    return raw


def _always(status: int, kind: str, text: bytes):
    return lambda path, body: (status, kind, text)


BROKEN = {
    "dead": _die,
    "dies within a gate": _die_after(9),
    "html": _always(200, "text/html", b"<html>Welcome to the gateway</html>"),
    "500": _always(500, "text/plain", b"Internal Server Error"),
    "502 with html": _always(502, "text/html", b"<html>Bad gateway</html>"),
    "wrong json": _always(200, "application/json", b'{"choices": [}'),
    "other json": _always(200, "application/json", b'{"detail": "hello"}'),
    "a list": _always(200, "application/json", b"[1, 2]"),
    "empty": _always(200, "application/json", b""),
}


def _run(good: str, raw, tmp: Path, deadline: float = DEADLINE) -> tuple[int, dict[str, tuple[Verdict, str, float]]]:
    server, address = proxy.serve(good, Fault("broken", "no server any more", raw=raw, transport=True))
    try:
        ctx = matrix.context(good, tmp / "cache")
        sizes = dataclasses.replace(ctx.profile, deadline_s=deadline, gate_deadline_s=GATE_DEADLINE)
        client = Client(address, deadline_s=deadline, concurrency=sizes.concurrency)
        client._model = ctx.facts.model
        with ledger.Writer(tmp / "l.jsonl") as writer:
            run = writer.start({"base_url": address})
            code = runner.run_all(GATES, dataclasses.replace(ctx, client=client, profile=sizes), writer, run)
        (kept,) = ledger.load(tmp / "l.jsonl")
        return code, {name: (r.verdict, r.reason, r.duration_s) for name, r in kept.results.items()}
    finally:
        server.shutdown()


QUICK = ("dies within a gate", "500", "wrong json", "other json")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in BROKEN])
def test_every_gate_ends_in_error_and_the_run_goes_on(good_server: str, name: str, tmp_path: Path) -> None:
    code, seen = _run(good_server, BROKEN[name], tmp_path)
    assert set(seen) == {g.name for g in GATES}
    failed = {k: v[1] for k, v in seen.items() if v[0] is Verdict.FAIL}
    assert not failed, "a broken server is no verdict on its model"
    passed = {k for k, v in seen.items() if v[0] is Verdict.PASS}
    assert not passed or name.startswith("dies"), f"green on a broken server: {passed}"
    errors = {k: v for k, v in seen.items() if v[0] is Verdict.ERROR}
    assert len(errors) >= 24
    assert all(reason for _, reason, _ in errors.values())
    assert all(seconds < GATE_DEADLINE + 1 for *_, seconds in seen.values())
    assert code == exits.EXIT_ERROR


def test_a_hanging_server_costs_its_deadline_only(good_server: str, tmp_path: Path) -> None:
    code, seen = _run(good_server, _hang, tmp_path, deadline=0.2)
    assert code == exits.EXIT_ERROR
    assert {v[0] for v in seen.values()} <= {Verdict.ERROR, Verdict.SKIP}
    assert all(seconds < GATE_DEADLINE + 1 for *_, seconds in seen.values())
