# SPDX-License-Identifier: Apache-2.0
"""Shared by the turn-grammar tests: recorded settings as requests, grammars as byte automata."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import xgrammar as xgr

DATA = Path(__file__).parent / "data"
ALWAYS_ON = "VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT"


@cache
def recorded(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text())


@contextmanager
def environment(values: dict[str, str] | None):
    before = {name: os.environ.get(name) for name in values or {}}
    os.environ.update(values or {})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def request_of(fields: dict[str, Any], tools: list[dict] | None) -> Any:
    """A request model of either API. `fields` override; `tools` is the default tool list."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    body = {"tools": tools, **fields}
    if body.pop("api", "chat") == "responses":
        body["tools"] = [
            {"type": "function", "strict": False, "parameters": None, **tool["function"]}
            for tool in body["tools"] or ()
        ]
        body.pop("messages", None)
        return ResponsesRequest(model="m", input="Hi", **body)
    if body["tools"] is None:
        body.pop("tools")
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "Hi"}], **body)


def constrained(setting: dict[str, Any], turn, tools: list[dict] | None):
    """The request of a recorded setting after `constrain_request`."""
    from vllm.parser.turn_grammar.request import Serving, constrain_request

    request = request_of(setting["request"], tools)
    serving = Serving(
        reasoning_parser=setting["reasoning_parser"] is not None,
        tool_parser=setting["tool_parser"] is not None,
        auto_tools=setting["enable_auto_tools"],
    )
    with environment(setting["env"]):
        return constrain_request(
            request,
            turn,
            prompt=setting["prompt_text"],
            serving=serving,
            chat_template_kwargs=setting["chat_template_kwargs"],
        )


def tag_of(request: Any) -> str | None:
    """The turn's structural tag on a request of either API."""
    params = getattr(request, "_parser_structured_outputs", None) or request.structured_outputs
    return None if params is None else params.structural_tag


class ByteMatcher:
    """A structural tag over bytes, with each of `special` also a token of its own."""

    def __init__(self, tag: str, special: list[str] = (), stops: list[str] = ()):
        vocab = [bytes([byte]) for byte in range(256)] + [text.encode() for text in special] + [b"<eos>"]
        self.special = {text: 256 + index for index, text in enumerate(special)}
        self.eos = len(vocab) - 1
        stop_ids = [self.special[text] for text in stops] or [self.eos]
        info = xgr.TokenizerInfo(vocab, stop_token_ids=stop_ids)
        self.stop_ids = stop_ids
        self.size = len(vocab)
        self.compiled = xgr.GrammarCompiler(info, cache_enabled=False).compile_structural_tag(tag)

    def matcher(self, override: list[str] | None = None) -> xgr.GrammarMatcher:
        stops = None if override is None else [self.special[text] for text in override]
        return xgr.GrammarMatcher(self.compiled, override_stop_tokens=stops)

    def read(self, text: str) -> tuple[bool, bool, int | None]:
        """(accepted, complete, first rejected byte) of `text` fed byte by byte."""
        matcher = self.matcher()
        for index, byte in enumerate(text.encode()):
            if not matcher.accept_token(byte):
                return False, False, index
        return True, matcher.accept_token(self.stop_ids[0]), None

    def allowed(self, text: str, override: list[str] | None = None) -> list[str]:
        """Special tokens the mask lets through after `text`."""
        matcher = self.matcher(override)
        while text:
            token = next((name for name in self.special if text.startswith(name)), None)
            if token is not None and matcher.accept_token(self.special[token]):
                text = text[len(token) :]
                continue
            head, text = text[0], text[1:]
            for byte in head.encode():
                assert matcher.accept_token(byte), (head, text)
        return [name for name, token in self.special.items() if self.bit(matcher, token)]

    def bit(self, matcher: xgr.GrammarMatcher, token: int) -> bool:
        mask = xgr.allocate_token_bitmask(1, self.size)
        matcher.fill_next_token_bitmask(mask)
        return bool(mask[0, token // 32].item() >> (token % 32) & 1)
