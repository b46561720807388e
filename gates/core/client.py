# SPDX-License-Identifier: Apache-2.0
"""The gates' HTTP client: every request has a total deadline, every oddity of a server has a name."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from gates.core.errors import GateError, Skip
from gates.core.transport import DeadlineTransport, until

MOST_BYTES = 64 << 20  # of one answer, unless the call expects more

# Of an event stream (WHATWG, server-sent events): every line end is one, fields of another name are to be ignored.
_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELD = re.compile(rb"[A-Za-z_-]*:")

T = TypeVar("T")
R = TypeVar("R")


class ServerTrouble(GateError):
    """The server did not answer as an OpenAI-compatible server does: the gate ends in ERROR, not in FAIL."""


class BadStatus(ServerTrouble):
    """A status other than the one that is due.

    Attributes:
        status: the one that came.
        turned_away: the client was not let in (key, proxy, rate limit, redirect): that says nothing of the server.
    """

    def __init__(self, status: int, text: str, where: str) -> None:
        super().__init__(f"status {status}: {text[:160]!r}", where=where)
        self.status, self.turned_away = status, turned_away(status)


def offered(status: int) -> bool:
    """Whether a server has the route that it answered so."""
    return status not in (404, 405, 501)


def turned_away(status: int) -> bool:
    return 300 <= status < 400 or status in (401, 403, 407, 429)


class OutOfTime(GateError):
    """The gate's own time is over: nothing more may be asked for it. No verdict on the server."""


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
        base_url: with or without the trailing `/v1`; a user and password in it are sent, and kept out of `root`.
        api_key: sent as a bearer token when set.
        deadline_s: total seconds a request may take, unless a call says otherwise.
        concurrency: most requests under way at once.
        model: served name to judge; the first that is listed otherwise.

    Raises:
        GateError: no usable address, or a key that no header can hold.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        deadline_s: float = 120.0,
        concurrency: int = 8,
        model: str | None = None,
    ) -> None:
        url = _address(base_url)
        key = api_key.strip()
        if not all("!" <= c <= "~" for c in key):
            raise GateError("the API key holds a character that no header can", action="see $GATES_API_KEY, --api-key")
        if key and url.userinfo:
            raise GateError("an API key and a password in the address", action="give one of them")
        self.root = str(url.copy_with(username=None, password=None)).rstrip("/").removesuffix("/v1")
        self.api_key, self.deadline_s, self.concurrency = key, deadline_s, concurrency
        self.auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        self._http = self._connect()
        self._model = model
        self._end: float | None = None
        self.offered: set[str] = set()  # optional fields and routes that it answered with

    def _connect(self) -> httpx.Client:
        # identity: a small compressed answer could unfold to more than the memory holds.
        headers = {"Accept-Encoding": "identity"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        # trust_env: a proxy for the outside world must not be asked for a server on this host.
        return httpx.Client(headers=headers, auth=self.auth, transport=DeadlineTransport(), trust_env=False)

    def close(self) -> None:
        self._http.close()

    def ending(self, seconds: float) -> Client:
        """This client, for a gate that has `seconds` left: no request starts or lasts past them (`OutOfTime`).

        It has connections of its own: one that a server closed on the gate before must not fail in this one.
        """
        other = copy.copy(self)
        other._http = self._connect()
        other._end = time.monotonic() + seconds
        return other

    def window(self) -> AbstractContextManager[None]:
        """For requests of another client over `DeadlineTransport`: ends them as one of this client's would end."""
        end = time.monotonic() + self.deadline_s
        return until(end if self._end is None else min(end, self._end))

    # -- plumbing ---------------------------------------------------------------------------------------------------
    def _send(
        self, method: str, path: str, body: Any, deadline_s: float | None, most_bytes: int = MOST_BYTES
    ) -> Iterator[tuple[str, Any, float]]:
        """Yield ("status", code, t), then ("bytes", piece, t) until the body ends.

        Raises:
            ServerTrouble: refused, reset, past the deadline, or more than `most_bytes` of body.
            OutOfTime: the gate's time is over.
        """
        limit = self.deadline_s if deadline_s is None else deadline_s
        start = time.monotonic()
        where = f"{method} {path}"
        content = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
        end = start + limit if self._end is None else min(start + limit, self._end)
        answered, size = False, 0
        try:
            if end <= start:
                raise httpx.ReadTimeout("too late to ask")
            request = self._http.build_request(
                method,
                self.root + path,
                content=content,
                headers={"Content-Type": "application/json"} if content is not None else {},
                timeout=httpx.Timeout(limit, connect=min(limit, 10.0)),
            )
            with until(end):
                response = self._http.send(request, stream=True)
            try:
                answered = True
                yield "status", response.status_code, time.monotonic() - start
                pieces = response.iter_bytes()
                while True:
                    with until(end):
                        piece = next(pieces, None)
                    if piece is None:
                        return
                    size += len(piece)
                    if size > most_bytes:
                        raise ServerTrouble(f"an answer of more than {most_bytes} bytes", where=where)
                    yield "bytes", piece, time.monotonic() - start
            finally:
                response.close()
        except httpx.TimeoutException as error:
            if self._end is not None and time.monotonic() >= self._end:
                raise OutOfTime("the gate's time is over", where=where) from error
            if answered:
                text = f"no end of the answer after {limit:g} s"
                raise ServerTrouble(text, where=where, action="is it hung?") from error
            raise ServerTrouble(f"no answer within {limit:g} s", where=where, action="see the server's log") from error
        except httpx.HTTPError as error:
            raise ServerTrouble(f"{type(error).__name__}: {error}", where=where, action="is the server up?") from error

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        deadline_s: float | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> Reply:
        """One exchange, any status. The body is decoded where it is JSON."""
        status, elapsed, pieces = 0, 0.0, []
        for kind, value, now in self._send(method, path, body, deadline_s, most_bytes):
            elapsed = now
            if kind == "status":
                status = value
            else:
                pieces.append(value)
        text = b"".join(pieces).decode("utf-8", "replace")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        return Reply(status=status, text=text, data=data, elapsed_s=elapsed)

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """One exchange that must be a 200 with a JSON object; options as for `request`.

        Raises:
            ServerTrouble: any other status, or another body.
        """
        reply = self.request(method, path, body, **options)
        if reply.status != 200:
            raise BadStatus(reply.status, reply.text, f"{method} {path}")
        return reply.json()

    def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        deadline_s: float | None = None,
        stop_after: int | None = None,
        slow_reads: Iterable[float] = (),
    ) -> Stream:
        """An event stream to its end.

        Args:
            stop_after: so many chunks that hold something, after which the client hangs up (a disconnect test).
            slow_reads: seconds to wait after each of the first reads.
        Raises:
            BadStatus: a chunk tells an error in the place of text, as what fails in mid-stream is told.
            ServerTrouble: a line that is no event, a chunk that is no JSON, or an end without `[DONE]` (half a stream).
        """
        out, now, pauses = Stream(status=0), 0.0, iter(slow_reads)
        buffer = b""
        where = f"POST {path}"
        for kind, value, now in self._send("POST", path, {**body, "stream": True}, deadline_s):
            if kind == "status":
                out.status = value
                continue
            time.sleep(next(pauses, 0.0))
            buffer += value
            if out.status != 200:
                continue
            *lines, buffer = _LINE_END.split(buffer)
            for line in lines:
                if self._event(line, now, out, where) and stop_after and len(said(out)) >= stop_after:
                    return out
        if out.status != 200:
            out.error = buffer.decode("utf-8", "replace")
            return out
        with contextlib.suppress(ServerTrouble):  # half a line is the end of half a stream
            self._event(buffer, now, out, where)
        if not out.done and not _closed(path, out):
            raise ServerTrouble(f"the stream ended after {len(out.chunks)} chunks without [DONE]", where=where)
        return out

    @staticmethod
    def _event(line: bytes, now: float, out: Stream, where: str) -> bool:
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line or (_FIELD.match(line) and not line.startswith(b"data:")):
            return False
        if not line.startswith(b"data:"):
            raise ServerTrouble(f"{line[:60]!r} is not an event", where=where, action="is a proxy in between?")
        payload = line[5:].strip()
        if payload == b"[DONE]":
            out.done = True
            return False
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise ServerTrouble(f"a chunk is not JSON: {payload[:60]!r}", where=where) from error
        if not isinstance(chunk, dict):
            raise ServerTrouble(f"a chunk is not an object: {payload[:60]!r}", where=where)
        if error := chunk.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            status = code if type(code) is int and 400 <= code < 600 else 500
            raise BadStatus(status, json.dumps(error, ensure_ascii=False), f"{where}, in mid-stream")
        out.chunks.append(chunk)
        out.times_s.append(now)
        return True

    def map(self, call: Callable[[T], R], items: Iterable[T], *, at_once: int | None = None) -> list[R]:
        """`call` over items, at most `at_once` (or `concurrency`) together, in order; the first error ends the rest."""
        with ThreadPoolExecutor(max_workers=at_once or self.concurrency) as pool:
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
        """The served model's name: the one that was chosen, or the first that `/v1/models` lists."""
        if self._model is None:
            self._model = str(self.models()[0]["id"])
        return self._model

    def models(self) -> list[dict[str, Any]]:
        """The cards that `/v1/models` lists, each with an `id`.

        Raises:
            ServerTrouble: there is none.
        """
        listed = self.ok("GET", "/v1/models").get("data")
        cards = listed if isinstance(listed, list) else []
        named = [c for c in cards if isinstance(c, dict) and isinstance(c.get("id"), str) and c["id"]]
        if not named:
            raise ServerTrouble("no model listed", where="GET /v1/models", action="is the server ready?")
        return named

    def chat(
        self, messages: list[dict[str, Any]] | str, *, deadline_s: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """A chat completion; a string is a single user message. Returns the decoded answer."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": self.model, "messages": messages, **options}
        answer = self.ok("POST", "/v1/chat/completions", body, deadline_s=deadline_s)
        return with_choices(answer, "/v1/chat/completions", "message", dict)

    def complete(
        self,
        prompt: str | list[int],
        *,
        deadline_s: float | None = None,
        most_bytes: int = MOST_BYTES,
        **options: Any,
    ) -> dict[str, Any]:
        """A plain completion of text or token ids. Returns the decoded answer."""
        body = {"model": self.model, "prompt": prompt, **options}
        answer = self.ok("POST", "/v1/completions", body, deadline_s=deadline_s, most_bytes=most_bytes)
        return with_choices(answer, "/v1/completions", "text", str)

    def has(self, what: str, there: bool, where: str) -> None:
        """Note that the server answered with `what`, or that it did not.

        Raises:
            Skip: it never did. ServerTrouble: it did before.
        """
        if there:
            self.offered.add(what)
        elif what in self.offered:
            raise ServerTrouble(f"an answer without {what}, which others had", where=where)
        else:
            raise Skip(f"the server knows no {what}")

    def tokenize(self, text: str) -> list[int]:
        """Token ids by the server's own tokenizer, special tokens as the server adds them to a prompt.

        Raises:
            Skip: the server, which still lists its models, has no such route.
            ServerTrouble: no ids, or none for a text.
        """
        try:
            answer = self.ok("POST", "/tokenize", {"model": self.model, "prompt": text})
        except BadStatus as status:
            if offered(status.status) or "/tokenize" in self.offered:
                raise
            self.models()
            raise Skip("the server has no /tokenize") from status
        self.offered.add("/tokenize")
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
            raise ServerTrouble("no token ids", where="POST /tokenize", action="is this vLLM?")
        if text.strip() and not tokens:
            raise ServerTrouble(f"no token ids for {text[:40]!r}", where="POST /tokenize", action="is this vLLM?")
        return tokens


def _address(text: str) -> httpx.URL:
    """A server's address.

    Raises:
        GateError: no http address, one with a query or a fragment, or one that no host or port can have.
    """
    try:
        url = httpx.URL(text.strip())
        url.raw_host.decode("ascii").encode("idna")  # as connecting would: labels that are empty or too long
        if not 0 < (url.port or 80) < 1 << 16:
            raise ValueError(f"there is no port {url.port}")
    except (httpx.InvalidURL, ValueError) as error:
        raise GateError(
            f"not an address ({error})", where="--base-url", action="give it as http://HOST:PORT"
        ) from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        shown = str(url.copy_with(username=None, password=None)) if url.host else text
        raise GateError(f"{shown!r} is not an address", where="--base-url", action="give it as http://HOST:PORT")
    return url


def said(out: Stream) -> list[dict[str, Any]]:
    """The chunks that hold something: not those without a choice, which tell usage, or what a gateway filtered."""
    return [chunk for chunk in out.chunks if chunk.get("choices", True)]


def _closed(path: str, out: Stream) -> bool:
    """Whether a stream without [DONE] is whole: the Responses API ends with a final event instead."""
    finals = ("response.completed", "response.incomplete", "response.failed")
    return path == "/v1/responses" and bool(out.chunks) and out.chunks[-1].get("type") in finals


def completion_tokens(answer: dict[str, Any]) -> int:
    """`usage.completion_tokens` of an answer.

    Raises:
        ServerTrouble: it is missing, or no count.
    """
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if type(count) is not int or count < 0:
        where = f"answer {str(answer.get('id'))[:40]}"
        raise ServerTrouble(f"`usage.completion_tokens` is {count!r}", where=where, action="is this an OpenAI API?")
    return count


def with_choices(answer: dict[str, Any], path: str, part: str, kind: type) -> dict[str, Any]:
    """`answer`, whose choices are there and each have their `part`.

    Raises:
        ServerTrouble: it has another shape.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ServerTrouble("an answer without choices", where=f"POST {path}", action="is this an OpenAI API?")
    if not all(isinstance(choice, dict) and isinstance(choice.get(part), kind) for choice in choices):
        raise ServerTrouble(f"a choice without `{part}`", where=f"POST {path}", action="is this an OpenAI API?")
    return answer
