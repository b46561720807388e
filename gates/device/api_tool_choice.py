# SPDX-License-Identifier: Apache-2.0
"""API checks 50-64: tool_choice required, named and none."""

from __future__ import annotations

from typing import Any

from gates.core.schemas import ALARM, PING, WEATHER, call_problem
from gates.core.suite import Api, Suite, expect, marker_in

SUITE = Suite("api-tool-choice", "required, named and none are kept, whatever the model would like")
TOOLS = [WEATHER, ALARM]
NAMED = {"type": "function", "function": {"name": "set_alarm"}}


def _valid(calls: list[dict[str, Any]]) -> None:
    expect(calls, "no call")
    for call in calls:
        wrong = call_problem(call, TOOLS)
        expect(not wrong, wrong)


def joined_calls(stream: Any) -> list[dict[str, str]]:
    """Tool calls of a stream put together: id, name and arguments by index."""
    out: dict[int, dict[str, str]] = {}
    for delta in stream.deltas():
        for piece in delta.get("tool_calls") or []:
            call = out.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["id"] = piece.get("id") or call["id"]
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
    return [out[i] for i in sorted(out)]


@SUITE.check(50, "required makes a call")
def _required(api: Api) -> None:
    _valid(api.message("Weather in Paris?", tools=TOOLS, tool_choice="required").get("tool_calls") or [])


@SUITE.check(51, "required uses listed names only")
def _listed(api: Api) -> None:
    _valid(api.message("Order a pizza.", tools=TOOLS, tool_choice="required").get("tool_calls") or [])


@SUITE.check(52, "required holds for chit-chat too")
def _chat(api: Api) -> None:
    for text in ("Hi", "Tell me a joke", "", "请讲个笑话"):
        _valid(api.message(text or "?", tools=TOOLS, tool_choice="required").get("tool_calls") or [])


@SUITE.check(53, "a required stream equals the plain answer")
def _required_stream(api: Api) -> None:
    plain = api.message("Hi", tools=TOOLS, tool_choice="required").get("tool_calls") or []
    streamed = joined_calls(api.stream("Hi", tools=TOOLS, tool_choice="required"))
    expect(
        [(c["function"]["name"], c["function"]["arguments"]) for c in plain]
        == [(c["name"], c["arguments"]) for c in streamed],
        f"{plain} against {streamed}",
    )


@SUITE.check(54, "required picks the fitting tool of two")
def _sensible(api: Api) -> None:
    api.needs("call")
    calls = api.message("Wake me at 7, loud.", tools=TOOLS, tool_choice="required").get("tool_calls") or []
    expect(calls and calls[0]["function"]["name"] == "set_alarm", f"calls {calls}")


@SUITE.check(55, "a named choice calls that tool")
def _named(api: Api) -> None:
    calls = api.message("Weather in Paris?", tools=TOOLS, tool_choice=NAMED).get("tool_calls") or []
    _valid(calls)
    expect(calls[0]["function"]["name"] == "set_alarm", f"called {calls[0]['function']['name']}")


@SUITE.check(56, "a named choice makes exactly one call")
def _exactly(api: Api) -> None:
    calls = api.message("Two alarms: at 6 and at 7.", tools=TOOLS, tool_choice=NAMED).get("tool_calls") or []
    expect(len(calls) == 1, f"{len(calls)} calls")


@SUITE.check(57, "a named choice ends with stop or tool_calls")
def _named_finish(api: Api) -> None:
    reason = api.choice("Hi", tools=TOOLS, tool_choice=NAMED).get("finish_reason")
    expect(reason in ("stop", "tool_calls"), f"finish {reason!r}")


@SUITE.check(58, "a named stream equals the plain answer")
def _named_stream(api: Api) -> None:
    plain = api.message("Hi", tools=TOOLS, tool_choice=NAMED).get("tool_calls") or []
    streamed = joined_calls(api.stream("Hi", tools=TOOLS, tool_choice=NAMED))
    expect([c["function"]["arguments"] for c in plain] == [c["arguments"] for c in streamed], "arguments differ")


@SUITE.check(59, "none makes no call")
def _none(api: Api) -> None:
    choice = api.choice("Weather in Paris?", tools=TOOLS, tool_choice="none")
    expect(not choice["message"].get("tool_calls"), "a call was made")
    _answered(api, choice["message"].get("content"), choice.get("finish_reason"))


def _answered(api: Api, content: str | None, finish: str | None) -> None:
    """A model that can answer in the place of a call does so."""
    if api.ctx.wording.can("answer instead of a call") and finish == "stop":
        expect(content, "stopped without content")


@SUITE.check(60, "none leaks no markup, however one begs")
def _begging(api: Api) -> None:
    api.needs("answer instead of a call")
    message = api.message("You must call get_weather for Paris now!", tools=TOOLS, tool_choice="none")
    expect(not marker_in(message.get("content")), "markup in the content")


@SUITE.check(61, "none holds in a stream")
def _none_stream(api: Api) -> None:
    stream = api.stream("Weather in Paris?", tools=TOOLS, tool_choice="none")
    expect(not joined_calls(stream) and not marker_in(stream.joined("content")), "a call or markup")
    _answered(api, stream.joined("content"), next(iter(stream.finish_reasons()), None))


@SUITE.check(62, "required with thinking off")
def _thinking_off(api: Api) -> None:
    reply = api.post(
        api.body("Hi", tools=TOOLS, tool_choice="required", chat_template_kwargs={"enable_thinking": False})
    )
    expect(reply.status in (200, 400), f"status {reply.status}")
    if reply.status == 200:
        _valid(reply.json()["choices"][0]["message"].get("tool_calls") or [])


@SUITE.check(63, "a named tool that is not listed is a 400")
def _unlisted(api: Api) -> None:
    api.refused(api.body(tools=[PING], tool_choice={"type": "function", "function": {"name": "nope"}}))


@SUITE.check(64, "required without tools is a 400")
def _toolless(api: Api) -> None:
    api.refused(api.body(tool_choice="required"))


GATE = SUITE.gate("dropped-argument")
