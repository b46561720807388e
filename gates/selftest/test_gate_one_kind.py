# SPDX-License-Identifier: Apache-2.0
"""Servers that fail one kind of request, turn the client away, or answer in another shape: whose fault it is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import gate
from gates.core.client import Client
from gates.core.result import GateResult, Verdict
from gates.core.runner import run_one

pytestmark = pytest.mark.long
GATES = gate.discover()


def _run(good: str, tmp: Path, name: str, **fault: Any) -> GateResult:
    server, address = proxy.serve(good, Fault("odd", "one oddity", **fault))
    try:
        ctx = matrix.context(good, tmp)
        client = Client(address, deadline_s=20.0)
        client._model = ctx.facts.model
        return run_one(GATES[name], dataclasses.replace(ctx, client=client))
    finally:
        server.shutdown()


def _when(wrong: Callable[[dict], bool], status: int) -> Callable[[str, dict], tuple[int, str, bytes] | None]:
    return lambda path, body: (status, "application/json", b'{"error": {"message": "no"}}') if wrong(body) else None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("api-sampling", lambda body: body.get("n") == 2),
        ("api-structured", lambda body: "response_format" in body),
        ("api-stream", lambda body: bool(body.get("stream"))),
    ],
)
def test_a_500_on_one_kind_of_request_fails_its_checks(
    good_server: str, tmp_path: Path, name: str, wrong: Callable[[dict], bool]
) -> None:
    seen = _run(good_server, tmp_path, name, raw=_when(wrong, 500))
    assert seen.verdict is Verdict.FAIL, seen.reason
    outcomes = seen.details["checks"].values()
    assert any("status 500" in text for text in outcomes)


def test_checks_before_and_after_it_keep_their_outcome(good_server: str, tmp_path: Path) -> None:
    seen = _run(good_server, tmp_path, "api-sampling", raw=_when(lambda body: body.get("n") == 2, 500))
    outcomes = list(seen.details["checks"].values())
    assert outcomes.count("") >= len(outcomes) - 3


@pytest.mark.parametrize("status", [302, 401, 403, 407, 429])
@pytest.mark.parametrize("name", ["api-chat", "api-usage-errors", "api-openai-client"])
def test_a_client_that_is_turned_away_is_no_verdict(good_server: str, tmp_path: Path, name: str, status: int) -> None:
    served = itertools.count()
    seen = _run(good_server, tmp_path, name, raw=_when(lambda body: next(served) >= 2, status))
    assert seen.verdict is Verdict.ERROR
    assert str(status) in seen.reason


SHAPES: dict[str, Any] = {"[null]": [None], "[{}]": [{}], "{}": {}, "[]": [], "null": None, "text": "choices"}


@pytest.mark.parametrize("name", ["api-chat", "copy", "isolation", "api-logprobs"])
@pytest.mark.parametrize("shape", SHAPES)
def test_json_of_another_shape_is_an_error(good_server: str, tmp_path: Path, name: str, shape: str) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        return {**answer, "choices": SHAPES[shape]} if "choices" in answer else answer

    seen = _run(good_server, tmp_path, name, reply=reply)
    assert seen.verdict is Verdict.ERROR


def test_rows_of_the_neighbour_are_the_servers_fault(good_server: str, tmp_path: Path) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            if rows := choice.get("prompt_logprobs"):
                choice["prompt_logprobs"] = [*rows[:1], *rows[2:], rows[1]]
        return answer

    seen = _run(good_server, tmp_path, "decode-vs-prefill", reply=reply)
    assert seen.verdict is Verdict.FAIL
    assert "missing from its own row" in seen.reason
