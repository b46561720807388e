# SPDX-License-Identifier: Apache-2.0
"""Whose fault it is: a client that is turned away, one kind of request that breaks, a route that a server lacks."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from behind_fault import run_behind

from gates import __main__ as cli
from gates.controls import matrix, proxy, toy_server
from gates.controls.faults import Fault
from gates.core import gate
from gates.core.client import BadStatus, Client, OutOfTime, ServerTrouble, Stream
from gates.core.errors import Failed
from gates.core.exits import EXIT_USAGE
from gates.core.result import Verdict
from gates.core.runner import run_one
from gates.core.suite import Api, Suite, held_back
from gates.device import api_openai_client, api_stream

GATES = gate.discover()
ROOT = Path(cli.__file__).parent


@pytest.fixture(scope="module")
def stand_in(good_server: str) -> gate.Context:
    return matrix.context(good_server, Path("nowhere"))


def _suite(*errors: Exception | None) -> Suite:
    suite = Suite("s", "as told")
    for number, error in enumerate(errors):

        def run(api: Api, error: Exception | None = error) -> None:
            if error is not None:
                raise error

        suite.check(number, f"check {number}")(run)
    return suite


TORN = ServerTrouble("the stream ended after 1 chunks without [DONE]")


def test_a_torn_answer_keeps_the_outcomes_of_the_other_checks(stand_in: gate.Context) -> None:
    seen = _suite(None, TORN, None).run(stand_in)
    assert seen.verdict is Verdict.ERROR
    assert seen.reason == f"1 of 3 checks broke, first `001 check 1`: {TORN}"
    assert list(seen.details["checks"].values()) == ["", str(TORN), ""]


def test_a_check_that_failed_is_a_verdict_whatever_else_broke(stand_in: gate.Context) -> None:
    assert _suite(TORN, Failed("wrong")).run(stand_in).verdict is Verdict.FAIL
    assert _suite(TORN, BadStatus(500, "", "POST /x")).run(stand_in).verdict is Verdict.FAIL


@pytest.mark.parametrize("error", [BadStatus(429, "", "POST /x"), OutOfTime("the gate's time is over")])
def test_what_the_rest_would_meet_ends_the_gate(stand_in: gate.Context, error: Exception) -> None:
    with pytest.raises(type(error)):
        _suite(None, error, None).run(stand_in)


def test_a_server_that_is_gone_ends_the_gate(stand_in: gate.Context) -> None:
    with pytest.raises(ServerTrouble):
        _suite(TORN).run(dataclasses.replace(stand_in, client=Client("http://127.0.0.1:9", model="m")))


class _TornStreams(toy_server.Handler):
    """Streams are torn after their first chunk; `lost` of a plain chat answer is missing."""

    lost = ""

    def _events(self, events: list, done: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        piece = f"data: {json.dumps(events[0])}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _send(self, status: int, data: Any, kind: str = "application/json") -> None:
        super()._send(status, {**data, self.lost: None} if self.lost in data else data, kind)


@pytest.mark.parametrize(("lost", "verdict"), [("", Verdict.ERROR), ("usage", Verdict.FAIL)])
def test_the_openai_client_keeps_a_verdict_when_a_later_step_breaks(
    stand_in: gate.Context, lost: str, verdict: Verdict
) -> None:
    pytest.importorskip("openai")
    server, address = toy_server.start(type("Torn", (_TornStreams,), {"lost": lost}))
    ctx = dataclasses.replace(stand_in, client=Client(address, deadline_s=5.0, model="toy"))
    seen = run_one(GATES["api-openai-client"], ctx)
    assert seen.verdict is verdict, seen
    told = seen.details["checks"]
    assert list(told) == list(api_openai_client.STEPS), "the steps after it are taken, too"
    assert told["stream"].startswith("APIConnectionError")
    assert bool(told["chat"]) is bool(lost)
    server.shutdown()


def test_every_check_asks_where_a_rate_limit_is_told_from_a_fault() -> None:
    """`Api.post`, `get`, `events` and their kin raise for a 429; the bare client does not."""
    bare = re.compile(r"api\.client\.(request|stream)\(")
    found = [path.name for path in sorted(ROOT.glob("device/api_*.py")) if bare.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("call", ["post", "get", "refused", "choice", "stream"])
def test_a_rate_limit_is_no_verdict(stand_in: gate.Context, call: str) -> None:
    limited = Fault(
        "limit", "429", raw=lambda path, body: (429, "application/json", b'{"error": {"message": "later"}}')
    )
    server, address = proxy.serve(stand_in.client.root, limited)
    api = Api(dataclasses.replace(stand_in, client=Client(address, model="toy")))
    with pytest.raises(BadStatus, match="status 429"):
        getattr(api, call)("/health" if call == "get" else {} if call in ("post", "refused") else "Hello")
    server.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("tokens", [256, 4])
def test_a_rate_limit_under_stress_is_no_verdict(stand_in: gate.Context, tokens: int) -> None:
    """At the disconnects, and at the oversize prompts, where another 4xx is due."""

    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        return (429, "text/plain", b"later") if body.get("max_tokens") == tokens else None

    seen = run_behind(stand_in, "stress", raw=raw)
    assert seen.verdict is Verdict.ERROR
    assert "429" in seen.reason


def test_a_good_model_behind_another_in_the_list_is_found(stand_in: gate.Context) -> None:
    def told(path: str, told: Any) -> Any:
        return {**told, "data": [{"id": "adapter", "object": "model"}, *told["data"]]} if "data" in told else told

    assert run_behind(stand_in, "api-models", told=told).verdict is Verdict.PASS


@pytest.mark.parametrize("status", [404, 405, 501])
@pytest.mark.parametrize("name", ["canary", "copy", "needles", "cache-honesty", "isolation", "repetition"])
def test_a_route_that_a_server_lacks_is_not_tried(stand_in: gate.Context, name: str, status: int) -> None:
    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        return (status, "text/plain", b"") if path in ("/tokenize", "/version", "/metrics") else None

    seen = run_behind(stand_in, name, raw=raw)
    assert (seen.verdict, seen.reason) == (Verdict.SKIP, "the server has no /tokenize")


def test_a_server_that_is_no_vllm_fails_no_check_for_it(stand_in: gate.Context) -> None:
    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        return (404, "text/plain", b"") if path in ("/tokenize", "/version", "/metrics") else None

    seen = run_behind(stand_in, "api-models", raw=raw)
    assert seen.verdict is Verdict.PASS, seen.reason
    assert "1 of 5 checks not tried" in seen.reason


def test_a_tokenizer_of_a_server_that_is_gone_is_no_skip(stand_in: gate.Context) -> None:
    gone = Fault("gone", "a gateway without its server", raw=lambda path, body: (404, "text/plain", b""))
    server, address = proxy.serve(stand_in.client.root, gone)
    with pytest.raises(ServerTrouble):
        Client(address, model="toy").tokenize("a")
    server.shutdown()


def _no_metrics(path: str, body: dict) -> tuple[int, str, bytes] | None:
    return (404, "text/plain", b"") if path == "/metrics" else None


def test_what_only_metrics_tell_is_not_tried_without_them(stand_in: gate.Context) -> None:
    server, address = proxy.serve(stand_in.client.root, Fault("page", "no metrics", raw=_no_metrics))
    ctx = dataclasses.replace(stand_in, client=Client(address, model="toy"))
    with pytest.raises(gate.Skip, match="num_requests_running"):
        next(check for check in api_stream.SUITE.checks if check.number == 31).run(Api(ctx))
    server.shutdown()
    sizes = dataclasses.replace(stand_in.profile, isolation_outputs=4)
    seen = run_behind(dataclasses.replace(stand_in, profile=sizes), "isolation", raw=_no_metrics)
    assert seen.verdict is Verdict.SKIP, seen.reason


class _Events(toy_server.Handler):
    """One stream, as the bytes of a query say."""

    sent = b""

    def _events(self, events: list, done: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(self.sent)


@pytest.mark.parametrize(
    "sent",
    [
        b'data: {"a": 1}\n\ndata: [DONE]',
        b'data: {"a": 1}\r\rdata: [DONE]\r\r',
        b'\xef\xbb\xbfdata: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n',
        b': hello\ntrace: 1\nevent: x\ndata:{"a": 1}\n\ndata:[DONE]\n\n',
    ],
)
def test_event_streams_as_the_standard_has_them(sent: bytes) -> None:
    server, address = toy_server.start(type("Events", (_Events,), {"sent": sent}))
    seen = Client(address, model="toy").stream("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert (seen.chunks, seen.done) == ([{"a": 1}], True)
    server.shutdown()


@pytest.mark.parametrize(
    "sent", [b'data: {"a": 1}\n\ndata: {"b"', b"<html>\n</html>\n", b'data: {"a": 1}\n\n', b"x\n\n"]
)
def test_half_a_stream_is_still_trouble(sent: bytes) -> None:
    server, address = toy_server.start(type("Events", (_Events,), {"sent": sent}))
    with pytest.raises(ServerTrouble):
        Client(address, model="toy").stream("/v1/completions", {"prompt": "a", "max_tokens": 1})
    server.shutdown()


@pytest.mark.long
@pytest.mark.parametrize("status", [200, 500])
def test_a_slow_reader_is_owed_its_whole_stream(stand_in: gate.Context, status: int) -> None:
    torn = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'

    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        slow = body.get("stream") and body.get("max_tokens") == 24
        return (status, "text/event-stream", torn) if slow else None

    seen = run_behind(stand_in, "stress", raw=raw)
    assert seen.verdict is Verdict.FAIL
    assert seen.details["checks"]["slow reader"]


@pytest.mark.long
def test_an_answer_under_overload_is_one(stand_in: gate.Context) -> None:
    def raw(path: str, body: dict) -> tuple[int, str, bytes] | None:
        busy = re.fullmatch(r"Hello [12]\d", str(body.get("prompt")))
        return (200, "text/html", b"<html>later</html>") if busy else None

    seen = run_behind(stand_in, "stress", raw=raw)
    assert seen.verdict is Verdict.FAIL
    assert seen.details["checks"]["overload"].startswith("20 of 32 requests")


def test_a_missing_dependency_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def missing() -> int:
        raise ModuleNotFoundError("No module named 'httpx'")

    monkeypatch.setattr(cli, "_list", missing)
    assert cli.main(["list"]) == EXIT_USAGE
    assert "pip install -r requirements/gates.txt" in capsys.readouterr().err
    bare = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r}); import gates.__main__"
    subprocess.run([sys.executable, "-I", "-S", "-c", bare], check=True, timeout=60)


def _stream(*shown: float, end: float, tokens: int = 0) -> Stream:
    """A chat stream whose text comes at these seconds."""
    piece = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    usage = [{"choices": [], "usage": {"completion_tokens": tokens}}] if tokens else []
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    chunks = [role, *[piece] * len(shown), {"choices": []}, *usage]
    return Stream(200, chunks, [0.1, *shown, end, *[end] * len(usage)], done=True)


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (_stream(0.5, 1.5, 5.0, end=5.0), ""),
        (_stream(2.4, 2.5, end=2.5), "nothing is shown for 2.4 of 2.5 s"),
        (_stream(0.8, 0.9, end=0.9), ""),
        (_stream(0.1, end=0.1, tokens=6), ""),
        (_stream(0.1, 0.1, end=0.1, tokens=64), "64 tokens come in 2 pieces"),
        (_stream(end=0.1), "nothing is shown"),
    ],
)
def test_a_stream_that_is_held_back_is_none(stream: Stream, wrong: str) -> None:
    assert held_back(stream) == wrong


def test_a_text_in_one_piece_fails_its_check(stand_in: gate.Context) -> None:
    def whole(path: str, body: dict, chunks: list[dict]) -> list[dict]:
        for name in ("reasoning", "content"):
            pieces = [c for c in chunks if any((x.get("delta") or {}).get(name) for x in c.get("choices") or [])]
            text = "".join(c["choices"][0]["delta"][name] for c in pieces)
            pieces[0]["choices"][0]["delta"][name] = text
            chunks = [c for c in chunks if c not in pieces[1:]]
        return chunks

    check = next(check for check in api_stream.SUITE.checks if check.number == 139)
    check.run(Api(stand_in))
    server, address = proxy.serve(stand_in.client.root, Fault("whole", "all at once", chunks=whole))
    long = dataclasses.replace(stand_in, client=Client(address, model="toy"))
    with pytest.raises(Failed, match="tokens come in"):
        check.run(Api(long))
    server.shutdown()
