# SPDX-License-Identifier: Apache-2.0
"""Cache honesty against a confident model: its answers change with the cache, and how sure it is of them does not."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from gates.controls import matrix, proxy, toy_server
from gates.controls.faults import Fault
from gates.core import gate
from gates.core.client import Client, ServerTrouble
from gates.core.result import GateResult, Verdict
from gates.core.runner import run_one
from gates.core.scoring import Continuation
from gates.device import cache_honesty

GATES = gate.discover()


def _row(ids: list[int]) -> dict[int, float]:
    """Log probabilities after a text: one of 26 letters nearly for certain, always by about as much."""
    seed = zlib.crc32(bytes(ids))
    sure = 0.99 - seed % 100 / 10_000
    return {97 + i: math.log(sure if i == seed % 26 else (1 - sure) / 25) for i in range(26)}


class _Confident(toy_server.Handler):
    """Reads another text where a prompt that was seen before is served from the cache (`fault` "stale"), or where a
    client that hung up shared its first block ("abort"), once the server noticed."""

    fault = ""
    seen: set[tuple[str, tuple[int, ...]]]
    spoiled: set[tuple[str, tuple[int, ...]]]

    def _drip(self, key: tuple[str, tuple[int, ...]]) -> None:
        """A stream that goes on until the client hangs up."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        event = b"data: " + json.dumps({"choices": [{"index": 0, "text": "a"}]}).encode() + b"\n\n"
        try:
            for _ in range(500):
                self.wfile.write(event)
                time.sleep(0.02)
        except OSError:
            self.spoiled.add(key)

    def _post(self, body: dict[str, Any]) -> None:
        if self.path != "/v1/completions" or body.get("prompt_logprobs") is not None:
            super()._post(body)
            return
        prompt, salt = list(body["prompt"]), str(body.get("cache_salt"))
        key, block = (salt, tuple(prompt)), (salt, tuple(prompt[:16]))
        if body.get("stream"):
            self._drip(block)
            return
        wrong = (self.fault == "stale" and key in self.seen) or (self.fault == "abort" and block in self.spoiled)
        ids = [prompt[0] ^ 1, *prompt[1:]] if wrong else prompt
        self.seen.add(key)
        rows = []
        for _ in range(int(body["max_tokens"])):
            rows.append(_row(ids))
            ids = [*ids, max(rows[-1], key=rows[-1].__getitem__)]
        made = ids[len(prompt) :]
        top = [sorted(row.items(), key=lambda item: -item[1])[: body["logprobs"]] for row in rows]
        logprobs = {
            "tokens": [f"token_id:{token}" for token in made],
            "token_logprobs": [row[token] for row, token in zip(rows, made, strict=True)],
            "top_logprobs": [{f"token_id:{token}": value for token, value in row} for row in top],
        }
        choice = {"index": 0, "text": bytes(made).decode(), "finish_reason": "length", "logprobs": logprobs}
        self._send(200, json.dumps({"id": "c", "choices": [choice]}))


def _run(good: str, tmp: Path, fault: str) -> GateResult:
    own = {"fault": fault, "seen": set(), "spoiled": set()}
    server, address = toy_server.start(type("Handler", (_Confident,), own))
    ctx = matrix.context(good, tmp)
    sizes = dataclasses.replace(ctx.profile, greedy_tokens=8, rungs=(64,))
    client = Client(address, model=ctx.facts.model)
    result = run_one(GATES["cache-honesty"], dataclasses.replace(ctx, client=client, profile=sizes))
    server.shutdown()
    return result


def test_another_answer_from_the_cache_is_caught_where_the_model_is_as_sure_of_both(
    good_server: str, tmp_path: Path
) -> None:
    seen = _run(good_server, tmp_path, "stale")
    assert seen.verdict is Verdict.FAIL, seen
    assert seen.details["worst"]["warm"] > 1


def test_blocks_that_an_abort_spoils_are_caught(good_server: str, tmp_path: Path) -> None:
    """Only those of the prompt's own salt, and only after the server noticed that its client is gone."""
    seen = _run(good_server, tmp_path, "abort")
    assert seen.verdict is Verdict.FAIL, seen
    assert seen.details["worst"]["warm"] == 0
    assert seen.details["worst"]["after aborts"] > 1


def test_the_same_model_with_an_honest_cache_passes(good_server: str, tmp_path: Path) -> None:
    """Control: the answers themselves are no fault."""
    seen = _run(good_server, tmp_path, "")
    assert seen.verdict is Verdict.PASS, seen
    assert seen.measurement is not None
    assert seen.measurement.value == 0


def test_answers_that_part_without_candidates_are_not_judged() -> None:
    a, b = (Continuation((token,), (-0.01,), "length") for token in (1, 2))
    with pytest.raises(ServerTrouble, match="no candidates where two answers part"):
        cache_honesty._agreeing(a, b)
    near = {1: -0.69, 2: -0.70}
    a, b = dataclasses.replace(a, top=(near,)), dataclasses.replace(b, top=(near,))
    assert cache_honesty._agreeing(a, b) < 1


@pytest.mark.parametrize(("told", "verdict"), [("False", Verdict.SKIP), ("True", Verdict.PASS)])
def test_without_a_prefix_cache_nothing_is_warm(good_server: str, tmp_path: Path, told: str, verdict: Verdict) -> None:
    row = f'vllm:cache_config_info{{block_size="128",enable_prefix_caching="{told}"}} 1.0\n'
    fault = Fault("f", "a page that tells", page=lambda path, text: row)
    server, address = proxy.serve(good_server, fault)
    seen = run_one(GATES["cache-honesty"], matrix.context(address, tmp_path))
    server.shutdown()
    assert seen.verdict is verdict, seen.reason
