# SPDX-License-Identifier: Apache-2.0
"""Chat and Responses of the stand-in server: reasoning, then an answer or calls, one character a token."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from gates.controls.toy_model import ToyModel, instance

REASONING = "Consider what is asked."
EFFORTS = (None, "low", "medium", "high", "minimal", "none", "max")


class BadRequest(Exception):
    """Answered with status 400."""


@dataclass
class Turn:
    """One choice: texts, calls as (name, arguments), and how many tokens it has."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = "stop"
    tokens: int = 0
    forced_name: bool = False


def _validate(body: dict[str, Any]) -> None:
    rules = {
        "`messages` is missing or no list": not isinstance(body.get("messages"), list) or not body["messages"],
        "`temperature` is negative": float(body.get("temperature") or 0) < 0,
        "`n` is below 1": int(body.get("n", 1)) < 1,
        "`top_logprobs` needs `logprobs`": bool(body.get("top_logprobs")) and not body.get("logprobs"),
        "`stream_options` needs `stream`": "stream_options" in body and not body.get("stream"),
        "`reasoning_effort` is unknown": body.get("reasoning_effort") not in EFFORTS
        or body.get("reasoning_effort") is True,
    }
    for text, broken in rules.items():
        if broken:
            raise BadRequest(text)
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema" and "schema" not in (form.get("json_schema") or {}):
        raise BadRequest("`response_format` has no schema")
    names = [t["function"]["name"] for t in body.get("tools") or []]
    if any(" " in n or "<" in n for n in names):
        raise BadRequest("`tools`: a name that cannot be spelled")
    choice = body.get("tool_choice")
    if choice == "required" and not names:
        raise BadRequest("`tool_choice` required without tools")
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        raise BadRequest("`tool_choice` names a tool that is not listed")


def _answer(model: ToyModel, body: dict[str, Any], index: int) -> str:
    form, constraint = body.get("response_format") or {}, body.get("structured_outputs") or {}
    if form.get("type") == "json_schema":
        return json.dumps(instance(form["json_schema"]["schema"]))
    if "regex" in constraint:
        return "ABC-12"
    if "choice" in constraint:
        return str(constraint["choice"][0])
    if "grammar" in constraint:
        return "yes sir"
    if "structural_tag" in constraint:
        return "tagged"
    said = rendered(body)
    greedy = float(body.get("temperature", 1)) == 0 or body.get("top_k") == 1
    out = b""
    for position in range(12):
        seed = int(body.get("seed") or 0) + index
        out += bytes([model.greedy(said + out) if greedy else model.sample(said + out, seed, position, body)])
    return out.decode("latin-1").replace("<", "(")


def rendered(body: dict[str, Any]) -> bytes:
    """The prompt of a chat request: its messages and a digest of them, as the model looks at the last bytes only."""
    text = json.dumps(body["messages"]).encode()
    return text + b"#%08x" % zlib.crc32(text)


def _spoken_of(body: dict[str, Any], tools: dict[str, Any]) -> str:
    """The tool that the user's last message speaks of, by its name's last word or by one of its parameters."""
    last = body["messages"][-1]
    said = str(last.get("content")).lower() if last.get("role") == "user" else ""
    words = {name: (name.rpartition("_")[2], *(schema.get("properties") or {})) for name, schema in tools.items()}
    return next((name for name, known in words.items() if any(word in said for word in known)), "")


def turns(model: ToyModel, body: dict[str, Any]) -> list[Turn]:
    """The choices of one chat request, cut at `max_tokens` (one token a character).

    Raises:
        BadRequest: what a good server refuses.
    """
    _validate(body)
    tools = {t["function"]["name"]: t["function"].get("parameters") or {} for t in body.get("tools") or []}
    choice = body.get("tool_choice")
    out = []
    for index in range(int(body.get("n", 1))):
        name = ""
        if isinstance(choice, dict):
            name = choice["function"]["name"]
        elif choice != "none":
            name = _spoken_of(body, tools) or (next(iter(tools), "") if choice == "required" else "")
        turn = Turn(REASONING, "" if name else _answer(model, body, index), forced_name=isinstance(choice, dict))
        if name:
            turn.calls.append((name, json.dumps(instance({"type": "object", **tools[name]}))))
        out.append(_cut(turn, body))
    return out


def _cut(turn: Turn, body: dict[str, Any]) -> Turn:
    limit = int(body.get("max_tokens") or 10**6)
    need = len(turn.reasoning) + len(turn.content) + sum(len(a) + 1 for _, a in turn.calls)
    for stop in body.get("stop") or []:
        if stop in turn.reasoning:
            turn.reasoning, turn.content, turn.calls = turn.reasoning[: turn.reasoning.index(stop)], "", []
            need = len(turn.reasoning)
    turn.tokens = min(limit, need)
    turn.finish = "length" if need > limit else "tool_calls" if turn.calls and not turn.forced_name else "stop"
    if need > limit:
        rest = max(0, limit - len(turn.reasoning))
        turn.reasoning, turn.content = turn.reasoning[:limit], turn.content[:rest]
        turn.calls = [(n, a[: max(0, rest - 1)]) for n, a in turn.calls] if rest else []
    if body.get("include_reasoning") is False:
        turn.reasoning = ""
    return turn


def _usage(made: list[Turn], body: dict[str, Any]) -> dict[str, int]:
    prompt = len(rendered(body))
    done = sum(t.tokens for t in made)
    return {"prompt_tokens": prompt, "completion_tokens": done, "total_tokens": prompt + done}


def _ids(text: str) -> list[int]:
    """Token ids of an answer, a character each."""
    return list(text.encode("latin-1", "replace"))


def _rows(text: str, body: dict[str, Any], before: str = "") -> list[dict[str, Any]]:
    """Log probabilities of a piece of an answer that stands behind `before`: the model's own for that text."""
    model, seen = ToyModel(), rendered(body) + bytes(_ids(before))
    rows = []
    for character, token in zip(text, _ids(text), strict=True):
        table = model.distribution(seen)
        own = {"token": character, "logprob": model.logprob(seen, token), "bytes": list(character.encode())}
        top = sorted(table, key=lambda t: -table[t])
        others = [{"token": chr(t), "logprob": table[t], "bytes": list(chr(t).encode())} for t in top if t != token]
        listed = sorted([own, *others], key=lambda row: -row["logprob"])[: int(body.get("top_logprobs") or 0)]
        # As vLLM lists them: the chosen token in any case.
        rows.append({**own, "top_logprobs": listed if own in listed else [*listed, own]})
        seen += bytes([token])
    return rows


def chat_reply(made: list[Turn], body: dict[str, Any], model: str) -> dict[str, Any]:
    """A plain chat answer."""
    choices = []
    for index, turn in enumerate(made):
        calls = [
            {"id": f"call-{index}-{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(turn.calls)
        ]
        message = {
            "role": "assistant",
            "content": turn.content or None,
            "reasoning": turn.reasoning or None,
            "tool_calls": calls,
        }
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": turn.finish}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": _rows((turn.reasoning + turn.content)[: turn.tokens], body)}
        if body.get("return_token_ids"):
            choice["token_ids"] = _ids((turn.reasoning + turn.content)[: turn.tokens])
        choices.append(choice)
    ids = {"prompt_token_ids": list(rendered(body))} if body.get("return_token_ids") else {}
    return {
        **ids,
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": choices,
        "usage": _usage(made, body),
    }


def chat_chunks(made: list[Turn], body: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """The chunks of a streamed chat answer."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    options = body.get("stream_options") or {}
    out: list[dict[str, Any]] = []
    count = 0

    def add(index: int, delta: dict[str, Any], finish: str | None = None, text: str = "", before: str = "") -> None:
        nonlocal count
        count += bool(text)
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
        if body.get("logprobs") and text:
            choice["logprobs"] = {"content": _rows(text, body, before)}
        chunk = {**base, "choices": [choice]}
        if options.get("continuous_usage_stats"):
            chunk["usage"] = {"completion_tokens": count}
        out.append(chunk)

    for index, turn in enumerate(made):
        add(index, {"role": "assistant", "content": ""})
        for place, character in enumerate(turn.reasoning):
            add(index, {"reasoning": character}, text=character, before=turn.reasoning[:place])
        for place, character in enumerate(turn.content):
            add(index, {"content": character}, text=character, before=turn.reasoning + turn.content[:place])
        for i, (name, arguments) in enumerate(turn.calls):
            add(
                index,
                {
                    "tool_calls": [
                        {
                            "index": i,
                            "id": f"call-{index}-{i}",
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }
                    ]
                },
            )
            for start in range(0, len(arguments), 4):
                add(index, {"tool_calls": [{"index": i, "function": {"arguments": arguments[start : start + 4]}}]})
        add(index, {}, turn.finish)
    if options.get("include_usage"):
        out.append({**base, "choices": [], "usage": _usage(made, body)})
    return out


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    text = body.get("input")
    messages = (
        [{"role": "user", "content": text}]
        if isinstance(text, str)
        else [{"role": "user", "content": json.dumps(text)}]
    )
    tools = [
        {"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in body.get("tools") or []
    ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    chat = {
        "messages": messages,
        "tools": tools,
        "tool_choice": choice,
        "max_tokens": body.get("max_output_tokens"),
        "temperature": 0,
    }
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form["schema"]}}
    return chat


def responses_reply(model: ToyModel, body: dict[str, Any], name: str) -> dict[str, Any]:
    """A plain Responses answer."""
    turn = turns(model, _as_chat(body))[0]
    output: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs-1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": turn.reasoning}],
        }
    ]
    output += [
        {"type": "function_call", "id": f"fc-{i}", "call_id": f"call-{i}", "name": n, "arguments": a}
        for i, (n, a) in enumerate(turn.calls)
    ]
    if turn.content:
        output.append(
            {
                "type": "message",
                "id": "msg-1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": turn.content}],
            }
        )
    status = "incomplete" if turn.finish == "length" else "completed"
    return {"id": "resp-1", "model": name, "status": status, "output": output, "usage": {"output_tokens": turn.tokens}}


def responses_events(model: ToyModel, body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The events of a streamed Responses answer."""
    answer = responses_reply(model, body, name)
    events: list[dict[str, Any]] = [{"type": "response.created"}]
    for item in answer["output"]:
        for part in item.get("content") or []:
            events += [{"type": f"response.{part['type']}.delta", "delta": character} for character in part["text"]]
        if item["type"] == "function_call":
            text = item["arguments"]
            events += [
                {"type": "response.function_call_arguments.delta", "delta": text[i : i + 4]}
                for i in range(0, len(text), 4)
            ]
            events.append({"type": "response.function_call_arguments.done", "arguments": text})
    events.append({"type": f"response.{answer['status']}", "response": answer})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]
