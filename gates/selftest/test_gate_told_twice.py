# SPDX-License-Identifier: Apache-2.0
"""What a server tells in two ways, plain and streamed, shown and hidden, must be the same; known faults of one way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from behind_fault import run_behind

from gates.controls import matrix
from gates.core import gate
from gates.core.result import Verdict

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def stand_in(good_server: str) -> gate.Context:
    return matrix.context(good_server, Path("nowhere"))


def _failed(ctx: gate.Context, name: str, **hooks: Any) -> set[int]:
    seen = run_behind(ctx, name, **hooks)
    assert seen.verdict is Verdict.FAIL, seen
    told = seen.details["checks"].items()
    return {int(check[:3]) for check, text in told if text and not text.startswith("skip: ")}


def _in_auto(body: dict[str, Any]) -> bool:
    return bool(body.get("tools")) and body.get("tool_choice") in (None, "auto")


def test_a_call_by_choice_is_held_to_the_form_of_a_forced_one(stand_in: gate.Context) -> None:
    def change(**given: Any) -> Any:
        def chunks(path: str, body: dict, chunks: list[dict]) -> list[dict]:
            for choice in (c for chunk in chunks if _in_auto(body) for c in chunk.get("choices") or []):
                if "finish" in given and choice.get("finish_reason"):
                    choice["finish_reason"] = given["finish"]
                for piece in choice["delta"].get("tool_calls") or []:
                    choice["delta"] |= {"content": given["content"]} if "content" in given else {}
                    piece |= {"id": given["id"]} if "id" in given else {}
            return chunks

        return chunks

    for given in ({"finish": "stop"}, {"id": "again"}, {"content": "<|call|>"}):
        assert _failed(stand_in, "api-tool-stream", chunks=change(**given)) == {140}, given


def test_streamed_rows_have_their_candidates(stand_in: gate.Context) -> None:
    def bare(path: str, body: dict, chunks: list[dict]) -> list[dict]:
        for choice in (c for chunk in chunks for c in chunk.get("choices") or []):
            for row in (choice.get("logprobs") or {}).get("content") or []:
                row["top_logprobs"] = row["top_logprobs"][:1]
        return chunks

    assert _failed(stand_in, "api-logprobs", chunks=bare) == {97}


def test_reasoning_that_is_streamed_is_the_final_one(stand_in: gate.Context) -> None:
    def without(kept: int) -> Any:
        def chunks(path: str, body: dict, chunks: list[dict]) -> list[dict]:
            told = [c for c in chunks if c.get("type") == "response.reasoning_text.delta"]
            out = [c for c in chunks if c not in told[kept:]]
            return [{**c, "sequence_number": i} for i, c in enumerate(out)] if path == "/v1/responses" else chunks

        return chunks

    assert run_behind(stand_in, "api-responses", chunks=without(0)).verdict is Verdict.PASS, "told at the end only"
    assert _failed(stand_in, "api-responses", chunks=without(3)) == {129}


@pytest.mark.parametrize(
    ("name", "check", "when"),
    [
        ("api-chat", 15, lambda body: body.get("chat_template_kwargs") == {"enable_thinking": False}),
        ("api-tool-choice", 59, lambda body: body.get("tool_choice") == "none"),
    ],
)
def test_a_turn_that_stops_without_a_word_is_no_answer(
    stand_in: gate.Context, name: str, check: int, when: Any
) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict[str, Any]:
        for choice in answer.get("choices") or [] if when(body) else []:
            choice["message"]["content"] = None
        return answer

    def chunks(path: str, body: dict, chunks: list[dict]) -> list[dict]:
        for choice in (c for chunk in chunks for c in chunk.get("choices") or [] if when(body)):
            choice["delta"].pop("content", None)
        return chunks

    assert _failed(stand_in, name, reply=reply) == {check}
    if name == "api-tool-choice":
        assert _failed(stand_in, name, chunks=chunks) == {61}
