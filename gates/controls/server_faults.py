# SPDX-License-Identifier: Apache-2.0
"""Known faults in what a server tells of itself, counts and checks, beside those of its answers (faults.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Body = dict[str, Any]


def shrunk_cache(path: str, text: str) -> str:
    """Half of the KV blocks are gone."""
    return re.sub(r'num_gpu_blocks="(\d+)"', lambda found: f'num_gpu_blocks="{int(found[1]) // 2}"', text)


def late_compiles(path: str, text: str) -> str:
    """Three graphs were compiled while users waited."""
    return re.sub(r"(?m)^(\w+:compiles_after_ready_total) \S+$", r"\1 3.0", text)


def other_weights(path: str, told: Any) -> Any:
    for card in told.get("data") or [] if path == "/v1/models" else ():
        card["state_hash"] = "0" * 64
    return told


def silent_version(path: str, told: Any) -> Any:
    return {} if path == "/version" else told


def lost_row(path: str, body: Body, answer: Body) -> Body:
    """A chat answer's log probabilities lack their last token."""
    for choice in answer.get("choices") or []:
        if isinstance(rows := (choice.get("logprobs") or {}).get("content"), list):
            choice["logprobs"]["content"] = rows[:-1]
    return answer


def scaled_logprobs(path: str, body: Body, answer: Body) -> Body:
    """A chat answer's log probabilities are half of what they are: they still are sorted, finite and negative."""
    for choice in answer.get("choices") or []:
        for row in (choice.get("logprobs") or {}).get("content") or []:
            for entry in [row, *(row.get("top_logprobs") or [])]:
                entry["logprob"] /= 2
    return answer


def scaled_stream(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """Only streams: log probabilities are halved."""
    for chunk in chunks:
        scaled_logprobs(path, body, chunk)
    return chunks


def lost_chunks(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """Every third piece of a completion's text is lost on its way."""
    return [c for i, c in enumerate(chunks) if i % 3 != 2] if path == "/v1/completions" else chunks


def lost_deltas(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """The Responses API streams no text: its final event alone holds it."""
    kept = [c for c in chunks if c.get("type") != "response.output_text.delta"]
    return [{**c, "sequence_number": i} for i, c in enumerate(kept)] if path == "/v1/responses" else chunks


def hidden_answer(path: str, body: Body, answer: Body) -> Body:
    """Where the reasoning is to be hidden, the answer goes with it."""
    for choice in answer.get("choices") or [] if body.get("include_reasoning") is False else []:
        if isinstance(choice.get("message"), dict):
            choice["message"]["content"] = None
    return answer


def miscounted(usage: Body | None) -> None:
    if usage and "prompt_tokens" in usage:
        usage["prompt_tokens"] += 1
        usage["total_tokens"] += 1


def miscounted_answer(path: str, body: Body, answer: Body) -> Body:
    if "choices" in answer:
        miscounted(answer.get("usage"))
    return answer


def miscounted_chunks(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    for chunk in chunks:
        miscounted(chunk.get("usage") if "choices" in chunk else None)
    return chunks


def lax(path: str, body: Body) -> Body:
    """Values out of range are taken for something else."""
    if isinstance(body.get("temperature"), (int, float)) and body["temperature"] < 0:
        body["temperature"] = 0
    if body.get("n") == 0:
        body["n"] = 1
    return body


def lost_item(path: str, body: Body, answer: Body) -> Body:
    """The Responses API leaves the reasoning out."""
    if path == "/v1/responses" and isinstance(answer.get("output"), list):
        answer["output"] = [item for item in answer["output"] if item.get("type") != "reasoning"]
    return answer


def neighbour_logprobs(path: str, body: Body, answer: Body) -> Body:
    """Each decoded token has the log probability of the one before it."""
    for choice in answer.get("choices") or []:
        block = choice.get("logprobs") or {}
        if values := block.get("token_logprobs"):
            block["token_logprobs"] = [values[0], *values[:-1]]
        rows = block.get("content") or []
        for row, value in list(zip(rows[1:], [row["logprob"] for row in rows], strict=False)):
            row["logprob"] = value
    return answer


def dropped_system(path: str, body: Body) -> Body:
    """The chat template loses the system message."""
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > 1:
        body["messages"] = [m for m in messages if not (isinstance(m, dict) and m.get("role") == "system")]
    return body


def dropped_history(path: str, body: Body) -> Body:
    """The chat template keeps the last message only."""
    if isinstance(body.get("messages"), list):
        body["messages"] = body["messages"][-1:]
    return body


def without(*names: str) -> Callable[[str, Body], Body]:
    """Parameters that the server takes and does not heed."""

    def request(path: str, body: Body) -> Body:
        return {name: value for name, value in body.items() if name not in names}

    return request


def _head(body: Body) -> tuple[str, str]:
    """The first tokens of a completion's prompt under its cache salt: a block that requests share."""
    prompt = body.get("prompt")
    return str(body.get("cache_salt", "")), str(prompt[:32] if isinstance(prompt, (list, str)) else prompt)


def hung_up(memory: Body) -> Callable[[str, Body], Body]:
    """Streams of completions are those that the gates hang up on: their first block counts as spoiled from then on."""

    def request(path: str, body: Body) -> Body:
        if path == "/v1/completions" and body.get("stream"):
            memory.setdefault("spoiled", set()).add(_head(body))
        return body

    return request


def spoiled_blocks(memory: Body) -> Callable[[str, Body, Body], Body]:
    """What is decoded from a spoiled block is an e-th as likely."""

    def reply(path: str, body: Body, answer: Body) -> Body:
        for choice in answer.get("choices") or [] if _head(body) in memory.get("spoiled", ()) else []:
            values = (choice.get("logprobs") or {}).get("token_logprobs") or []
            values[:] = [value - 1.0 for value in values]
        return answer

    return reply
