# SPDX-License-Identifier: Apache-2.0
"""Device gates against servers that a careless gate would pass: echoes, constant answers, leaks, dead long contexts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import gate, wording
from gates.core.client import Client
from gates.core.gate import Context
from gates.core.result import GateResult, Verdict
from gates.core.runner import run_one
from gates.device import _reading

GATES = gate.discover()
RUNGS = (900, 1400, 1900)  # one byte is one token of the stand-in


def _context(address: str, tmp: Path, *, plain: bool = True) -> Context:
    ctx = matrix.context(address, tmp)
    sizes = dataclasses.replace(ctx.profile, isolation_outputs=9)
    if plain:
        sizes = dataclasses.replace(sizes, wording="plain", rungs=RUNGS, samples=12)
    return dataclasses.replace(ctx, profile=sizes)


def _against(good: str, tmp: Path, name: str, answer: Callable[[str], str], *, plain: bool = True) -> GateResult:
    """A gate against a server whose every answer is made from the prompt by `answer`."""

    def reply(path: str, body: dict, reply: dict) -> dict:
        asked = str(body.get("prompt") or (body.get("messages") or [{}])[-1].get("content"))
        for choice in reply.get("choices") or []:
            holder, part = (choice["message"], "content") if "message" in choice else (choice, "text")
            holder[part] = answer(asked)
        return reply

    server, address = proxy.serve(good, Fault("made up", "answers by rule", reply=reply))
    try:
        ctx = _context(good, tmp, plain=plain)
        client = Client(address, deadline_s=20.0)
        client._model = ctx.facts.model
        return run_one(GATES[name], dataclasses.replace(ctx, client=client))
    finally:
        server.shutdown()


READERS = ("needles", "ruler-multi-key", "ruler-tracking", "ruler-aggregation")


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_an_echo_of_the_prompt_is_no_answer(good_server: str, tmp_path: Path, name: str) -> None:
    assert _against(good_server, tmp_path, name, lambda asked: asked).verdict is Verdict.FAIL


@pytest.mark.long
def test_a_list_of_all_counts_is_no_count(good_server: str, tmp_path: Path) -> None:
    seen = _against(good_server, tmp_path, "ruler-aggregation", lambda asked: "I counted 1, 2, 3, 4, 5, 6, 7.")
    assert seen.verdict is Verdict.FAIL


@pytest.mark.long
def test_the_right_count_in_a_sentence_is_one(good_server: str, tmp_path: Path) -> None:
    """Control: the gate can pass."""
    seen = _against(
        good_server, tmp_path, "ruler-aggregation", lambda asked: f"There are {asked.count('silver bell rang')}."
    )
    assert seen.verdict is Verdict.PASS, seen.reason


@pytest.mark.long
def test_a_dead_long_context_is_no_pass(good_server: str, tmp_path: Path) -> None:
    """Right at two of three lengths is two thirds, above the limit of 0.6 on the whole."""

    def answer(asked: str) -> str:
        return "none" if len(asked) > RUNGS[1] + 200 else str(asked.count("silver bell rang"))

    seen = _against(good_server, tmp_path, "ruler-aggregation", answer)
    assert seen.measurement is not None
    assert seen.measurement.value == pytest.approx(2 / 3)
    assert seen.verdict is Verdict.FAIL
    assert seen.reason.startswith("by length")


def test_short_lengths_are_told_from_chance() -> None:
    assert _reading.short({"1": [True] * 8, "2": [False] * 8}, 0.6) == {"2": "0/8"}
    assert _reading.short({"1": [True] * 4 + [False] * 4}, 0.9) == {"1": "4/8"}
    assert not _reading.short({"1": [True] * 7 + [False]}, 0.9)


@pytest.mark.parametrize(
    ("answer", "right"), [("1234;", True), (" 1234.", True), ("B=A=1234;", True), ("12345;", False), ("x 1234", False)]
)
def test_plain_continuations_begin_with_the_answer(answer: str, right: bool) -> None:
    assert _reading.names(wording.TOY, answer, "1234", []) is right


def test_chat_answers_hold_no_other_value() -> None:
    assert _reading.names(wording.PLAIN, "It is 123456.", "123456", ["654321"])
    assert not _reading.names(wording.PLAIN, "123456 or 654321", "123456", ["654321"])


@pytest.mark.long
@pytest.mark.parametrize("plain", [True, False])
def test_isolation_needs_answers_that_hold_their_code(good_server: str, tmp_path: Path, plain: bool) -> None:
    for answer in ("", "the same for all"):
        seen = _against(good_server, tmp_path, "isolation", lambda asked, a=answer: a, plain=plain)
        assert seen.verdict is Verdict.SKIP
        assert "0 of 9 answers hold their own code" in seen.reason


def test_a_leak_is_named_where_preemptions_are_not_counted(good_server: str, tmp_path: Path) -> None:
    seen: list[str] = []

    def reply(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            seen.extend(re.findall(r"[B-DF-HJ-NP-TV-XZ]{10}", str(body.get("prompt"))))
            choice["text"] += seen[0]
        return answer

    def hide(path: str, body: dict) -> tuple[int, str, bytes] | None:
        return (404, "text/plain", b"") if path == "/metrics" else None

    server, address = proxy.serve(good_server, Fault("leak", "no metrics", reply=reply, raw=hide))
    ctx = _context(good_server, tmp_path, plain=False)
    client = Client(address, deadline_s=20.0)
    client._model = ctx.facts.model
    result = run_one(GATES["isolation"], dataclasses.replace(ctx, client=client))
    server.shutdown()
    assert result.verdict is Verdict.FAIL
    assert "an unknown number of preemptions" in result.reason


@pytest.mark.long
def test_a_server_that_dies_under_stress_is_at_fault(good_server: str, tmp_path: Path) -> None:
    """It was healthy before: FAIL with what was seen, not ERROR."""
    dead: list[bool] = []

    def die(path: str, body: dict) -> None:
        if len(str(body.get("prompt"))) > 10_000 or dead:
            dead.append(True)
            raise ConnectionResetError

    server, address = proxy.serve(good_server, Fault("fragile", "dies of a long prompt", raw=die))
    ctx = _context(good_server, tmp_path)
    client = Client(address, deadline_s=20.0)
    client._model = ctx.facts.model
    result = run_one(GATES["stress"], dataclasses.replace(ctx, client=client))
    server.shutdown()
    assert result.verdict is Verdict.FAIL
    assert result.details["checks"]["disconnects"] == ""
    assert result.details["checks"]["alive after oversize"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["endless-thinking", "repetition"])
def test_empty_answers_are_no_pass(good_server: str, tmp_path: Path, name: str) -> None:
    assert _against(good_server, tmp_path, name, lambda asked: "").verdict is Verdict.FAIL
