# SPDX-License-Identifier: Apache-2.0
"""The gates' HTTP client: every request has a total deadline, every oddity of a server has a name.

httpx's own timeouts are per read, so a server that drips one byte a second would never time out; here the deadline
covers the whole exchange, streams included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from gates.core.errors import GateError

T = TypeVar("T")
R = TypeVar("R")


class ServerTrouble(GateError):
    """The server did not answer as an OpenAI-compatible server does: the gate ends in ERROR, not in FAIL."""


@dataclass(frozen=True)
class Reply:
    """A whole answer: status, decoded JSON where the body is JSON, text, seconds from send to last byte."""

    status: int
    text: str
    data: Any
    elapsed_s: float

    def json(self) -> dict[str, Any]:
        """The body as an object.

        Raises:
            ServerTrouble: the body is not a JSON object.
        """
        if not isinstance(self.data, dict):
            head = self.text[:80].replace("\n", " ")
            raise ServerTrouble(f"the server sent {head!r} where a JSON object is due", action="is this an OpenAI API?")
        return self.data


@dataclass
class Stream:
    """A finished event stream: decoded chunks with their arrival times in seconds since the request."""

    status: int
    chunks: list[dict[str, Any]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    done: bool = False
    error: str = ""

    def deltas(self, index: int = 0) -> Iterator[dict[str, Any]]:
        """The `delta` objects of one choice of a chat stream, in order."""
        for chunk in self.chunks:
            for choice in chunk.get("choices") or []:
                if choice.get("index") == index:
                    yield choice.get("delta") or {}

    def joined(self, name: str, index: int = 0) -> str:
        """All pieces of one text field (`content`, `reasoning`) of a choice, joined."""
        return "".join(delta.get(name) or "" for delta in self.deltas(index))

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk.get("choices") or []
            if choice.get("index") == index and choice.get("finish_reason")
        ]


class Client:
    """A server under test.

    Args:
        base_url: with or without the trailing `/v1`.
        api_key: sent as a bearer token when set.
        deadline_s: total seconds a request may take, unless a call says otherwise.
        concurrency: most requests under way at once.
    """

    def __init__(self, base_url: str, *, api_key: str = "", deadline_s: float = 120.0, concurrency: int = 8) -> None:
        root = base_url.rstrip("/")
        self.root = root[: -len("/v1")] if root.endswith("/v1") else root
        if not self.root.startswith(("http://", "https://")):
            raise GateError(f"{base_url!r} is not an address", action="give it as http://HOST:PORT")
        self.api_key, self.deadline_s, self.concurrency = api_key, deadline_s, concurrency
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Concurrency is bounded by the callers; a bounded pool would close idle connections under other threads' feet.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # trust_env: a proxy for the outside world must not be asked for a server on this host.
        self._http = httpx.Client(headers=headers, limits=limits, trust_env=False)
        self._model: str | None = None

    def close(self) -> None:
        self._http.close()

    # -- plumbing ---------------------------------------------------------------------------------------------------
    def _send(self, method: str, path: str, body: Any, deadline_s: float | None) -> Iterator[tuple[str, Any, float]]:
        """Yield ("status", code, t), then ("bytes", piece, t) until the body ends.

        Raises:
            ServerTrouble: refused, reset, or past the deadline.
        """
        limit = self.deadline_s if deadline_s is None else deadline_s
        start = time.monotonic()
        where = f"{method} {path}"
        content = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        try:
            request = self._http.build_request(
                method,
                self.root + path,
                content=content,
                headers={"Content-Type": "application/json"} if content is not None else {},
                timeout=httpx.Timeout(limit, connect=min(limit, 10.0)),
            )
            response = self._http.send(request, stream=True)
            try:
                yield "status", response.status_code, time.monotonic() - start
                for piece in (
                    response.iter_raw() if not response.headers.get("content-encoding") else response.iter_bytes()
                ):
                    now = time.monotonic() - start
                    if now > limit:
                        raise ServerTrouble(
                            f"no end of the answer after {limit:g} s", where=where, action="is it hung?"
                        )
                    yield "bytes", piece, now
            finally:
                response.close()
        except httpx.TimeoutException as error:
            raise ServerTrouble(f"no answer within {limit:g} s", where=where, action="see the server's log") from error
        except httpx.HTTPError as error:
            raise ServerTrouble(f"{type(error).__name__}: {error}", where=where, action="is the server up?") from error

    def request(self, method: str, path: str, body: Any = None, *, deadline_s: float | None = None) -> Reply:
        """One exchange, any status. The body is decoded where it is JSON."""
        status, elapsed, pieces = 0, 0.0, []
        for kind, value, now in self._send(method, path, body, deadline_s):
            elapsed = now
            if kind == "status":
                status = value
            else:
                pieces.append(value)
        text = b"".join(pieces).decode("utf-8", "replace")
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        return Reply(status=status, text=text, data=data, elapsed_s=elapsed)

    def ok(self, method: str, path: str, body: Any = None, *, deadline_s: float | None = None) -> dict[str, Any]:
        """One exchange that must be a 200 with a JSON object.

        Raises:
            ServerTrouble: any other status, or another body.
        """
        reply = self.request(method, path, body, deadline_s=deadline_s)
        if reply.status != 200:
            raise ServerTrouble(f"status {reply.status}: {reply.text[:160]!r}", where=f"{method} {path}")
        return reply.json()

    def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        deadline_s: float | None = None,
        stop_after: int | None = None,
    ) -> Stream:
        """An event stream to its end; `stop_after` chunks the client hangs up (a disconnect test).

        Raises:
            ServerTrouble: a line that is no event, a chunk that is no JSON, or an end without `[DONE]` (half a stream).
        """
        out = Stream(status=0)
        buffer = b""
        where = f"POST {path}"
        for kind, value, now in self._send("POST", path, {**body, "stream": True}, deadline_s):
            if kind == "status":
                out.status = value
                continue
            buffer += value
            if out.status != 200:
                continue
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                if self._event(line.strip(), now, out, where) and stop_after and len(out.chunks) >= stop_after:
                    return out
        if out.status != 200:
            out.error = buffer.decode("utf-8", "replace")
        elif not out.done and not _closed(path, out):
            raise ServerTrouble(f"the stream ended after {len(out.chunks)} chunks without [DONE]", where=where)
        return out

    @staticmethod
    def _event(line: bytes, now: float, out: Stream, where: str) -> bool:
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return False
        if not line.startswith(b"data:"):
            raise ServerTrouble(f"{line[:60]!r} is not an event", where=where, action="is a proxy in between?")
        payload = line[5:].strip()
        if payload == b"[DONE]":
            out.done = True
            return False
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise ServerTrouble(f"a chunk is not JSON: {payload[:60]!r}", where=where) from error
        if not isinstance(chunk, dict):
            raise ServerTrouble(f"a chunk is not an object: {payload[:60]!r}", where=where)
        out.chunks.append(chunk)
        out.times_s.append(now)
        return True

    def map(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """`call` over items with bounded concurrency, results in order; the first error ends the rest."""
        with ThreadPoolExecutor(max_workers=self.concurrency) as pool:
            futures = [pool.submit(call, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    # -- the OpenAI surface -----------------------------------------------------------------------------------------
    @property
    def model(self) -> str:
        """The served model's name: the first that `/v1/models` lists."""
        if self._model is None:
            models = self.ok("GET", "/v1/models").get("data")
            if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
                raise ServerTrouble("no model listed", where="GET /v1/models", action="is the server ready?")
            self._model = str(models[0]["id"])
        return self._model

    def chat(
        self, messages: list[dict[str, Any]] | str, *, deadline_s: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """A chat completion; a string is a single user message. Returns the decoded answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": self.model, "messages": messages, **options}
        answer = self.ok("POST", "/v1/chat/completions", body, deadline_s=deadline_s)
        return _with_choices(answer, "/v1/chat/completions")

    def complete(self, prompt: str | list[int], *, deadline_s: float | None = None, **options: Any) -> dict[str, Any]:
        """A plain completion of text or token ids. Returns the decoded answer."""
        body = {"model": self.model, "prompt": prompt, **options}
        return _with_choices(self.ok("POST", "/v1/completions", body, deadline_s=deadline_s), "/v1/completions")

    def tokenize(self, text: str) -> list[int]:
        """Token ids by the server's own tokenizer, special tokens as the server adds them to a prompt."""
        answer = self.ok("POST", "/tokenize", {"model": self.model, "prompt": text})
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise ServerTrouble("no token ids", where="POST /tokenize")
        return tokens


def _closed(path: str, out: Stream) -> bool:
    """Whether a stream without [DONE] is whole: the Responses API ends with a final event instead."""
    finals = ("response.completed", "response.incomplete", "response.failed")
    return path == "/v1/responses" and bool(out.chunks) and out.chunks[-1].get("type") in finals


def _with_choices(answer: dict[str, Any], path: str) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        raise ServerTrouble("an answer without choices", where=f"POST {path}")
    return answer
