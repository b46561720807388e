# SPDX-License-Identifier: Apache-2.0
"""The runner: whatever a server or a gate does becomes a verdict, in time, and the run goes on."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls.toy_server import Handler, start
from gates.core import gate, ledger, profile, runner, server_facts, thresholds
from gates.core.client import Client, ServerTrouble
from gates.core.errors import GateError
from gates.core.gate import Context, Gate, Skip
from gates.core.result import GateResult, Measurement, Verdict

FACTS = server_facts.ServerFacts("0.26.0", None, "m", 4096, {})


def _context(address: str = "http://127.0.0.1:9", deadline: float = 2.0, gate_deadline: float = 4.0) -> Context:
    sizes = dataclasses.replace(profile.get("stand-in"), deadline_s=deadline, gate_deadline_s=gate_deadline)
    client = Client(address, deadline_s=deadline)
    client._model = "m"
    return Context(client, FACTS, sizes, thresholds.load())


def _gate(run, name: str = "g") -> Gate:
    return Gate(name, "api", "a test gate", run)


def _bug(ctx: Context) -> GateResult:
    raise ZeroDivisionError("a bug")


def _skip(ctx: Context) -> GateResult:
    raise Skip("not here")


@pytest.mark.parametrize(
    ("run", "verdict", "text"),
    [
        (_bug, Verdict.ERROR, "ZeroDivisionError: a bug"),
        (_skip, Verdict.SKIP, "not here"),
        (lambda c: time.sleep(60), Verdict.ERROR, "not finished after 0.2 s"),
    ],
)
def test_everything_becomes_a_verdict(run, verdict: Verdict, text: str) -> None:
    result = runner.run_one(_gate(run), _context(gate_deadline=0.2))
    assert result.verdict is verdict
    assert text in result.reason


def _server(respond) -> str:
    class Odd(BaseHTTPRequestHandler):
        def log_message(self, *args) -> None:
            """Quiet."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            respond(self)

        do_GET = do_POST

    return start(Odd)[1]


def _raw(text: bytes, kind: str = "application/json", status: int = 200):
    def respond(handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return respond


def _drip(handler) -> None:
    """One byte every 0.3 s: never a read timeout, never an end."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.3)


def _hang(handler) -> None:
    time.sleep(20)


def _half(handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    handler.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n')


ODD = {
    "html": (_raw(b"<html>gateway</html>", "text/html"), "where a JSON object is due"),
    "wrong json": (_raw(b'{"choices": [}'), "where a JSON object is due"),
    "a list": (_raw(b"[1, 2]"), "where a JSON object is due"),
    "no choices": (_raw(b'{"choices": []}'), "an answer without choices"),
    "500": (_raw(b"Internal Server Error", "text/plain", 500), "status 500"),
    "hang": (_hang, "no answer within 1 s"),
    "drip": (_drip, "no end of the answer after 1 s"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_servers_end_in_error_within_the_deadline(name: str) -> None:
    respond, message = ODD[name]
    ctx = _context(_server(respond), deadline=1.0)
    began = time.monotonic()
    result = runner.run_one(_gate(lambda c: c.client.chat("hi") and None), ctx)
    assert result.verdict is Verdict.ERROR
    assert message in result.reason
    assert time.monotonic() - began < 4.0 + 2.0


def test_half_a_stream_and_bad_events_are_trouble() -> None:
    with pytest.raises(ServerTrouble, match=r"without \[DONE\]"):
        Client(_server(_half)).stream("/v1/chat/completions", {})
    with pytest.raises(ServerTrouble, match="is not an event"):
        Client(_server(_raw(b"hello\n", "text/event-stream"))).stream("/v1/chat/completions", {})
    with pytest.raises(ServerTrouble, match="a chunk is not JSON"):
        Client(_server(_raw(b"data: {oops\n\n", "text/event-stream"))).stream("/v1/chat/completions", {})


def test_a_dead_server_is_named() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
    with pytest.raises(ServerTrouble, match="is the server up"):
        Client(address).chat("hi")


def test_run_goes_on_and_resumes_without_repeating(tmp_path: Path) -> None:
    calls: list[str] = []

    def counted(name: str, result):
        def run(ctx: Context) -> GateResult:
            calls.append(name)
            if isinstance(result, Exception):
                raise result
            return result

        return _gate(run, name)

    gates = [
        counted("a", GateResult("a", Verdict.PASS)),
        counted("b", GateError("the server died")),
        counted("c", GateResult("c", Verdict.FAIL, "bad")),
    ]
    path = tmp_path / "l.jsonl"
    identity = {"base_url": "u"}
    writer = ledger.Writer(path)
    ctx = _context()
    assert runner.run_all(gates, ctx, writer, writer.start(identity)) == runner.EXIT_ERROR
    assert calls == ["a", "b", "c"]
    resumed = ledger.resumable(path, identity)
    assert resumed is not None
    assert runner.run_all(gates, ctx, writer, resumed) == runner.EXIT_ERROR
    assert calls == ["a", "b", "c", "b"]  # only what broke is tried again
    ok = [g for g in gates if g.name != "b"]
    assert runner.run_all(ok, ctx, writer, resumed) == runner.EXIT_FAIL
    assert runner.run_all(ok[:1], ctx, writer, resumed) == runner.EXIT_PASS


def test_judge_needs_a_threshold_and_refuses_one_below_the_floor() -> None:
    ctx = _context()
    with pytest.raises(GateError, match="no threshold"):
        gate.judge(ctx, "no-such-gate", Measurement(1.0, "nats"))
    with pytest.raises(GateError, match=r"below 1 x the measured floor 0\.5"):
        gate.judge(ctx, "cache-honesty", Measurement(0.1, "nats"), noise_floor=0.5)
    assert gate.judge(ctx, "cache-honesty", Measurement(0.1, "nats"), noise_floor=0.1).verdict is Verdict.PASS
    assert gate.judge(ctx, "needles", Measurement(0.5, "share")).verdict is Verdict.FAIL
    tiny = dataclasses.replace(ctx, profile=profile.get("tiny"))
    assert gate.judge(ctx, "decode-vs-prefill", Measurement(0.02, "nats")).verdict is Verdict.PASS
    assert gate.judge(tiny, "decode-vs-prefill", Measurement(0.02, "nats")).threshold == 0.012
    assert gate.judge(tiny, "decode-vs-prefill", Measurement(0.02, "nats")).verdict is Verdict.FAIL


def test_every_gate_with_a_limit_has_one_and_none_is_unused() -> None:
    limits = set(thresholds.load())
    assert limits <= set(gate.discover()), "a threshold of no gate"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nvalue = 1\n", "missing"),
        ('[a]\nvalue = 1\ndirection = "up"\nunit = "x"\nsource = "s"\nreason = "r"\n', "direction 'up'"),
        ('[a]\nvalue = 1\ndirection = "max"\nunit = "x"\nsource = ""\nreason = "r"\n', "without source"),
        ("[a\n", "not TOML"),
        (
            '[a]\nvalue = 1\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n[a.profiles.tiny]\nvalue = 2\n',
            "needs value and reason",
        ),
    ],
)
def test_bad_thresholds_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(GateError, match=message):
        thresholds.load(path)


def test_command_line_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    _, address = start(Handler)
    path = tmp_path / "l.jsonl"
    argv = ["run", "--base-url", address, "--profile", "stand-in", "--ledger", str(path), "--only", "api-models"]
    assert cli.main(argv) == 0
    assert "PASS\tapi-models" in capsys.readouterr().out
    assert cli.main(argv) == 0
    assert "already in the ledger" in capsys.readouterr().err
    header = json.loads(path.read_text().splitlines()[0])
    assert header["server"]["lock_hash"] == "0123456789ab"
    assert cli.main([*argv[:-1], "no-such-gate"]) == 2
    assert "no gate or category `no-such-gate`" in capsys.readouterr().err
    assert cli.main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(gate.discover())


def test_all_133_numbered_checks_exist_once() -> None:
    import importlib
    import pkgutil

    import gates.device

    numbers: list[int] = []
    for info in pkgutil.iter_modules(gates.device.__path__):
        suite = getattr(importlib.import_module(f"gates.device.{info.name}"), "SUITE", None)
        numbers += [check.number for check in suite.checks] if suite else []
    assert sorted(numbers) == list(range(1, 134))


def test_gate_threads_do_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run_one(_gate(lambda c: time.sleep(30)), _context(gate_deadline=0.1))
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("gate-"))
