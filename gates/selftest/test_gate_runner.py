# SPDX-License-Identifier: Apache-2.0
"""The runner: whatever a server or a gate does becomes a verdict, in time, and the run goes on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import socket
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls.toy_server import Handler, start
from gates.core import exits, gate, ledger, profile, runner, scoring, server_facts, thresholds
from gates.core.client import Client, ServerTrouble
from gates.core.errors import GateError, Skip
from gates.core.gate import Context, Gate
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


def _nonsense(ctx: Context) -> GateResult:
    scoring.finite(float("nan"), "token 3")
    raise AssertionError("NaN went through")


@pytest.mark.parametrize(
    ("run", "verdict", "text"),
    [
        (_bug, Verdict.ERROR, "ZeroDivisionError: a bug"),
        (_skip, Verdict.SKIP, "not here"),
        (_nonsense, Verdict.FAIL, "is no number"),
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


def _drip_headers(handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(40):
        handler.wfile.write(b"X-Drip-%d: 1\r\n" % number)
        time.sleep(0.1)


def _flood(handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(80):
        handler.wfile.write(b" " * (1 << 20))


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
    "dripping headers": (_drip_headers, "no answer within 1 s"),
    "flood": (_flood, "an answer of more than 67108864 bytes"),
    "deep": (_raw(b"[" * 100_000), "where a JSON object is due"),
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
    ctx = _context()
    with ledger.Writer(path) as writer:
        assert runner.run_all(gates, ctx, writer, writer.start(identity)) == exits.EXIT_FAIL
    assert calls == ["a", "b", "c"]
    with ledger.Writer(path) as writer:
        assert writer.resumable(identity) is None
        resumed = writer.resumable(identity, again=True)
        assert resumed is not None
        assert runner.run_all(gates, ctx, writer, resumed) == exits.EXIT_FAIL
        assert calls == ["a", "b", "c", "b"]  # only what broke is tried again
        ok = [g for g in gates if g.name != "b"]
        assert runner.run_all(ok, ctx, writer, resumed) == exits.EXIT_FAIL
        assert runner.run_all(ok[:1], ctx, writer, resumed) == exits.EXIT_PASS
        assert runner.run_all(gates[:2], ctx, writer, resumed) == exits.EXIT_ERROR


@pytest.mark.parametrize(("pace", "told"), [(0.001, []), (30, ["60 s", "20 s"]), (600, ["20 min", "7 min"])])
def test_estimates_come_from_the_last_run_and_from_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: float, told: list[str]
) -> None:
    """None below a second: "about 0 s left" on every line tells nothing."""
    clock = itertools.count(0.0, pace)
    monkeypatch.setattr(runner, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))

    def counting(ctx: Context) -> GateResult:
        ctx.progress("3/4 answers")
        return GateResult("g", Verdict.PASS)

    said: list[str] = []
    ctx = _context()
    for _ in range(2):
        with ledger.Writer(tmp_path / "l.jsonl") as writer:
            run = writer.start({"profile": ctx.profile.name})
            runner.run_all([_gate(counting)], ctx, writer, run, say=said.append)
    assert [line for line in said if "as last time" in line] == [
        f"[1/1] g ... about {t}, as last time" for t in told[:1]
    ]
    assert [line for line in said if "left" in line] == [f"[1/1] g: 3/4 answers, about {t} left" for t in told[1:] * 2]


@pytest.mark.parametrize(
    "text", ["\n\nPASS\tisolation\t", "\x1b[2J", "\ud800", "x" * 10_000, "\r", "\u202e"], ids=range(6)
)
def test_text_of_a_server_neither_forges_lines_nor_drives_the_terminal(tmp_path: Path, text: str) -> None:
    def odd(ctx: Context) -> GateResult:
        return GateResult("g", Verdict.FAIL, f"bad {text}", details={text: [text, float("nan")]})

    with ledger.Writer(tmp_path / "l.jsonl") as writer:
        run = writer.start({})
        assert runner.run_all([_gate(odd)], _context(), writer, run) == exits.EXIT_FAIL
    (read,) = ledger.load(tmp_path / "l.jsonl")
    reason = read.results["g"].reason
    assert reason.isprintable()
    assert len(reason) <= 600
    reason.encode()


def test_judge_needs_a_threshold_and_refuses_one_below_the_floor() -> None:
    ctx = _context()
    with pytest.raises(GateError, match="no threshold"):
        gate.judge(ctx, "no-such-gate", Measurement(1.0, "nats"))
    with pytest.raises(GateError, match=r"below what the measured floor 0\.7 allows"):
        gate.judge(ctx, "cache-honesty", Measurement(0.1, "nats"), noise_floor=0.7)
    assert gate.judge(ctx, "cache-honesty", Measurement(0.1, "nats"), noise_floor=0.1).verdict is Verdict.PASS
    wavering = gate.judge(ctx, "cache-honesty", Measurement(0.1, "nats"), own_floor=0.9)
    assert wavering.verdict is Verdict.FAIL
    assert "the same request twice gives answers 0.9 nats apart" in wavering.reason
    with pytest.raises(GateError, match=r"above what the measured floor 0\.96 allows"):
        gate.judge(ctx, "top1-agreement", Measurement(0.99, "share"), noise_floor=0.96)
    assert gate.judge(ctx, "top1-agreement", Measurement(0.99, "share"), noise_floor=0.98).verdict is Verdict.PASS
    assert gate.judge(ctx, "needles", Measurement(0.5, "share")).verdict is Verdict.FAIL
    tiny = dataclasses.replace(ctx, profile=profile.get("tiny"))
    assert gate.judge(ctx, "decode-vs-prefill", Measurement(0.02, "nats")).verdict is Verdict.PASS
    assert gate.judge(tiny, "decode-vs-prefill", Measurement(0.02, "nats")).threshold == 0.009
    assert gate.judge(tiny, "decode-vs-prefill", Measurement(0.02, "nats")).verdict is Verdict.FAIL


def test_every_gate_with_a_limit_has_one_and_none_is_unused() -> None:
    limits = {name.removesuffix("-in-company") for name in thresholds.load()}
    assert limits <= set(gate.discover()), "a threshold of no gate"


def test_every_limit_tells_its_floor_or_that_there_is_none() -> None:
    told = thresholds.load()
    assert [name for name, limit in told.items() if not limit.floor] == []
    held = {name for name, limit in told.items() if limit.floor_factor}
    assert {"perplexity", "top1-agreement", "kl-divergence", "decode-vs-prefill", "cache-honesty", "canary"} <= held


def test_limits_on_the_cache_let_a_near_tie_pass_and_a_stale_block_not() -> None:
    limit = thresholds.load()["cache-honesty"]
    assert limit.holds(0.58), "the widest near-tie the port page saw on a good FP8 server"
    assert not limit.holds(1.0)
    assert limit.of("tiny").holds(0.014)
    assert not limit.of("tiny").holds(0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nvalue = 1\n", "missing"),
        ('[a]\nvalue = 1\ndirection = "up"\nunit = "x"\nsource = "s"\nreason = "r"\n', "direction 'up'"),
        ('[a]\nvalue = 1\ndirection = "max"\nunit = "x"\nsource = ""\nreason = "r"\n', "without source"),
        ("[a\n", "not TOML"),
        ("a = 1\n", "no table"),
        ('[a]\nvalue = inf\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n', "are numbers"),
        ('[a]\nvalue = true\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n', "are numbers"),
        (
            '[a]\nvalue = 1\nfloor_factor = -1\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n',
            "not below 0",
        ),
        ('[a]\nvalue = 1\nprofiles = 3\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n', "holds tables"),
        (
            '[a]\nvalue = 1\ndirection = "max"\nunit = "x"\nsource = "s"\nreason = "r"\n[a.profiles.huge]\nvalue = 2\n',
            "no profile `huge`",
        ),
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
    assert "resuming" not in capsys.readouterr().err, "a run that ended is no verdict on the server of today"
    assert cli.main([*argv, "--resume"]) == 0
    assert "already in the ledger" in capsys.readouterr().err
    header = json.loads(path.read_text().splitlines()[0])
    assert header["server"]["lock_hash"] == "0123456789ab"
    assert cli.main([*argv[:-1], "no-such-gate"]) == 2
    assert "no gate or category `no-such-gate`" in capsys.readouterr().err
    assert cli.main(["list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(gate.discover())


def test_numbered_checks_exist_once() -> None:
    import importlib
    import pkgutil

    import gates.device

    numbers: list[int] = []
    for info in pkgutil.iter_modules(gates.device.__path__):
        suite = getattr(importlib.import_module(f"gates.device.{info.name}"), "SUITE", None)
        numbers += [check.number for check in suite.checks] if suite else []
    assert sorted(numbers) == list(range(1, 142))


def test_gate_threads_do_not_keep_the_process() -> None:
    runner.run_one(_gate(lambda c: time.sleep(30)), _context(gate_deadline=0.1))
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("gate-"))


def test_a_gate_past_its_deadline_asks_no_more() -> None:
    asked: list[float] = []

    def slow(handler) -> None:
        asked.append(time.monotonic())
        time.sleep(0.2)
        _raw(b"{}")(handler)

    def many(ctx: Context) -> GateResult:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda n: ctx.client.request("GET", f"/{n}"), range(50)))
        return GateResult("g", Verdict.PASS)

    before = set(threading.enumerate())
    result = runner.run_one(_gate(many), _context(_server(slow), deadline=9.0, gate_deadline=0.5))
    assert result.verdict is Verdict.ERROR
    for thread in set(threading.enumerate()) - before:
        if "ThreadPoolExecutor" in thread.name:
            thread.join(5)
            assert not thread.is_alive()
    assert len(asked) < 12


@pytest.mark.parametrize(
    ("address", "key", "message"),
    [
        ("http://[::1", "", "not an address"),
        ("http://h:notaport", "", "not an address"),
        ("ftp://h", "", "not an address"),
        ("http://h?x=1", "", "not an address"),
        ("host:8000", "", "not an address"),
        ("http://a..b:80", "", "not an address"),
        (f"http://{'a' * 70}", "", "not an address"),
        ("http://h:99999", "", "not an address"),
        ("http://h:-1", "", "not an address"),
        ("http://h", "sk-geheim\u00e9", "a character that no header can"),
        ("http://h", "sk-ge\nheim", "a character that no header can"),
        ("http://u:geheim@h", "sk-1", "an API key and a password"),
    ],
)
def test_addresses_and_keys_that_cannot_be(address: str, key: str, message: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["run", "--base-url", address, "--api-key", key]) == exits.EXIT_USAGE
    told = capsys.readouterr().err
    assert message in told
    assert "geheim" not in told


def test_a_password_in_the_address_is_sent_and_not_recorded() -> None:
    seen: list[str | None] = []

    def keep(handler) -> None:
        seen.append(handler.headers["Authorization"])
        _raw(b"{}")(handler)

    client = Client(_server(keep).replace("http://", "HTTP://user:geheim@") + "/v1/ ")
    client.request("GET", "/health")
    assert seen == ["Basic dXNlcjpnZWhlaW0="]
    assert "geheim" not in client.root
    client = Client(_server(keep), api_key=" sk-1\r\n")
    client.request("GET", "/health")
    assert seen[1] == "Bearer sk-1"


def test_a_key_that_the_server_echoes_is_hidden() -> None:
    ctx = _context()
    ctx.client.api_key = "sk-geheim"
    said = GateResult("g", Verdict.FAIL, "bad sk-geheim", details={"a": ["sk-geheim"]})
    result = runner.run_one(_gate(lambda c: said), ctx)
    assert "geheim" not in str(result)
    ctx.client.api_key = "a"
    assert "bad sk-geheim" in runner.run_one(_gate(lambda c: said), ctx).reason, "no key worth hiding"


def test_a_key_that_is_echoed_before_any_gate_is_hidden(capsys: pytest.CaptureFixture) -> None:
    address = _server(_raw(b'{"error": "Incorrect API key provided: sk-geheim"}', status=401))
    assert cli.main(["run", "--base-url", address, "--api-key", "sk-geheim"]) == exits.EXIT_ERROR
    assert "geheim" not in capsys.readouterr().err


def test_one_of_several_models_is_chosen(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    def two(handler) -> None:
        _raw(b'{"data": [{"id": "a"}, {"id": "b"}], "version": {}}')(handler)

    argv = ["run", "--base-url", _server(two), "--only", "api-models", "--ledger", str(tmp_path / "l.jsonl")]
    assert cli.main([*argv, "--model", "c"]) == exits.EXIT_USAGE
    assert "choose of: a, b" in capsys.readouterr().err
    cli.main([*argv, "--model", "b"])
    assert ledger.load(tmp_path / "l.jsonl")[0].server["model"] == "b"
    cli.main(argv)
    assert "several models; judged is `a`" in capsys.readouterr().err


def test_an_unforeseen_error_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_list", lambda: 1 // 0)
    assert cli.main(["list"]) == exits.EXIT_ERROR


def test_what_decides_a_verdict_is_part_of_the_run(tmp_path: Path) -> None:
    """Another reference, a wished floor or other gates start a run of their own."""
    _, address = start(Handler)
    path = tmp_path / "l.jsonl"
    argv = ["run", "--base-url", address, "--profile", "stand-in", "--ledger", str(path), "--only", "api-models"]
    assert cli.main([*argv, "--resume"]) == 0
    assert cli.main([*argv, "--resume"]) == 0
    assert len(ledger.load(path)) == 1
    assert cli.main([*argv, "--resume", "--floor"]) == 0
    assert len(ledger.load(path)) == 2
    assert cli.main([*argv, "--reference", str(tmp_path / "none.json")]) == exits.EXIT_USAGE


def test_a_gate_goes_before_a_category_of_its_name() -> None:
    found = gate.discover()
    assert [g.name for g in runner.select(found, ["isolation"])] == ["isolation"]
    assert "needles" in [g.name for g in runner.select(found, ["quality"])]


def test_what_was_left_out_is_told() -> None:
    short = dataclasses.replace(_context(), facts=dataclasses.replace(FACTS, max_model_len=300))

    def long(ctx: Context) -> GateResult:
        ctx.lengths((100, 200, 400), reserve=50)
        return gate.checks("g", {"a": "", "b": "skip: weak model"})

    result = runner.run_one(_gate(long), short)
    assert result.verdict is Verdict.PASS
    assert "1 of 2 checks not tried" in result.reason
    assert "too short for the rungs [400]" in result.reason


def test_seeds_are_told() -> None:
    result = runner.run_one(_gate(lambda c: GateResult("g", Verdict.PASS, str(c.seed(2) + c.seed()))), _context())
    assert result.seeds == (1761, 1763)
