# SPDX-License-Identifier: Apache-2.0
"""What users' own code sees: the openai client against the server, typed objects and all.

The numbered checks look at the wire; this one catches what only shows in a client: fields a model class refuses,
streams that do not join, errors it cannot map.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

from gates.core.client import BadStatus, ServerTrouble, turned_away
from gates.core.errors import Skip
from gates.core.gate import Context, Gate
from gates.core.result import GateResult
from gates.core.schemas import ALARM, ENUM, problem, response_format
from gates.core.suite import ODD_SHAPES, Api, judged
from gates.core.transport import DeadlineTransport

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


def _chat(client: Any, model: str, room: int) -> str:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=room, temperature=0)
    return "" if answer.choices[0].message.role == "assistant" and answer.usage else f"odd answer {answer}"


def _stream(client: Any, model: str, room: int) -> str:
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=room, temperature=0)
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=room, temperature=0, stream=True
        )
        if chunk.choices
    )
    return "" if text == (whole.choices[0].message.content or "") else "the joined stream differs from the answer"


def _tool(client: Any, model: str, room: int) -> str:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=room, temperature=0, tools=[ALARM], tool_choice="required"
    )
    calls = answer.choices[0].message.tool_calls or []
    return problem(calls[0].function.arguments, ALARM["function"]["parameters"]) if calls else "no call"


def _structured(client: Any, model: str, room: int) -> str:
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=room, temperature=0, response_format=response_format(ENUM)
    )
    return problem(answer.choices[0].message.content, ENUM)


def _refusal(client: Any, model: str, room: int) -> str:
    import openai

    try:
        client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
    except openai.BadRequestError as error:
        return "" if "temperature" in json.dumps(error.body) else f"the message names no parameter: {error.body}"
    return "temperature -1 was accepted"


STEPS: dict[str, Callable[[Any, str, int], str]] = {
    "chat": _chat,
    "stream": _stream,
    "required tool": _tool,
    "json schema": _structured,
    "refusal is a BadRequestError": _refusal,
}


def _run(ctx: Context) -> GateResult:
    if importlib.util.find_spec("openai") is None:
        raise Skip("the openai client is not installed (requirements/gates.txt)")
    import httpx
    import openai

    client = openai.OpenAI(
        base_url=f"{ctx.client.root}/v1",
        api_key=ctx.client.api_key or "none",
        max_retries=0,
        timeout=ctx.profile.deadline_s,
        http_client=httpx.Client(auth=ctx.client.auth, transport=DeadlineTransport(), trust_env=False),
    )
    try:
        with ctx.client.window():
            models = client.models.list()
    except openai.APIStatusError as error:
        raise BadStatus(error.status_code, error.response.text, "GET /v1/models") from error
    except openai.APIConnectionError as error:
        raise ServerTrouble(f"{type(error).__name__}: {error}", where="GET /v1/models") from error
    if not getattr(models, "data", None):  # the client hands a body that is no JSON through as text
        raise ServerTrouble("the server lists no models", where="GET /v1/models", action="is this an OpenAI API?")
    outcomes: dict[str, str] = {}
    broke: list[str] = []
    for name, step in STEPS.items():
        try:
            with ctx.client.window():
                outcomes[name] = step(client, ctx.client.model, ctx.profile.answer_tokens)
        except openai.APIConnectionError as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
            if not Api(ctx).plain_answer():
                raise ServerTrouble(outcomes[name], where=name) from error
            broke.append(name)
        except openai.APIStatusError as error:
            if turned_away(error.status_code):
                raise BadStatus(error.status_code, error.response.text, name) from error
            outcomes[name] = f"{type(error).__name__}: {str(error)[:160]}"
        except (openai.OpenAIError, *ODD_SHAPES) as error:
            outcomes[name] = f"{type(error).__name__}: {str(error)[:160]}"
    return judged("api-openai-client", outcomes, broke)


GATE = Gate(
    "api-openai-client",
    "api",
    "chat, stream, tools, schemas and refusals through the openai client",
    _run,
    ("dropped-argument",),
)
