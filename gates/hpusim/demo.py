# SPDX-License-Identifier: Apache-2.0
"""The README's first command, last part: serve a generated tiny checkpoint on the emulated Gaudi and talk to it.

    python -m gates.hpusim.demo                 # in the serving environment: start, ask, measure, stop
    python -m gates.hpusim.demo --serve         # the same, then stay up until Ctrl-C
    python -m gates.hpusim.demo --before wheels=41 --before environment=95     # seconds of earlier phases, shown

Safe to interrupt and to repeat: the checkpoint is kept in build/demo and made anew if it is incomplete; the server
is stopped whatever happens. Exit codes: 0 fine, 1 a check failed, 2 wrong usage, 3 the machine cannot (port, memory,
disk, packages), 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gates.hpusim import checkpoints, install, settings, testing, tokenizer
from gates.hpusim.demo_report import report
from gates.hpusim.faults import config
from gates.hpusim.inherited import left_out

ROOT = Path(__file__).resolve().parents[2]
NEED_MEMORY = 3 << 30  # engine and API server, measured on the tiny checkpoint, with head room
NEED_DISK = 200 << 20
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "mood": {"type": "string", "enum": ["calm", "busy"]}},
    "required": ["sure", "mood"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class DemoError(Exception):
    """Why the demo cannot go on and what to do. `code` is the exit code."""

    def __init__(self, what: str, action: str, code: int = 3) -> None:
        super().__init__(f"{what}. {action}")
        self.code = code


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Clock:
    """Phases with their seconds; says what is being done while it is done."""

    def __init__(self, before: list[tuple[str, float]]) -> None:
        self.phases = list(before)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        say(f"· {name} ...")
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.phases.append((name, seconds))
        say(f"  {name}: {seconds:.1f} s")


def check_environment() -> None:
    """DemoError when a HPUSIM_* variable is unknown or wrong (exit code 2), or a package is missing or another (3)."""
    listed = "The settings are listed in gates/hpusim/settings.py."
    try:
        settings.settings()
        config.from_environment()
        off = settings.switched_off()
    except ValueError as error:
        raise DemoError(str(error), listed, code=2) from error
    if off:
        raise DemoError("HPUSIM_OFF=1 leaves the emulation out, and there is no other card", "Unset it.", code=2)
    if wrong := install.check_this():
        raise DemoError("\n".join(wrong), "`make env` builds the environment anew; `make demo` uses it.")
    if names := left_out():
        say(f"  not passed on to the server: {', '.join(names)}")


def check_machine(folder: Path, port: int) -> None:
    """DemoError (exit code 3) when the port is taken, or memory or disk do not suffice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
                "Stop what listens there, or take a free port: build/venv/bin/python -m scripts demo --port 0.",
            ) from error
    available = memory_available()
    if available is not None and available < NEED_MEMORY:
        raise DemoError(
            f"{available >> 20} MiB of memory are available, the server needs about {NEED_MEMORY >> 20}",
            "Close other programs and run it again.",
        )
    free = shutil.disk_usage(folder).free
    if free < NEED_DISK:
        raise DemoError(
            f"{free >> 20} MiB are free below {folder}, the checkpoint and logs need {NEED_DISK >> 20}",
            "Free some space (`make clean` removes what was built) and run it again.",
        )


def memory_available() -> int | None:
    """Bytes the kernel says can be had, None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values["MemAvailable"].split()[0]) << 10 if "MemAvailable" in values else None


def streamed_chat(client: Any) -> dict[str, Any]:
    """A chat whose pieces are counted as they arrive."""
    start = time.monotonic()
    pieces, first = [], None
    messages = [{"role": "user", "content": "Tell me about Paris."}]
    for chunk in client.chat.completions.create(model="tiny", messages=messages, max_tokens=48, stream=True, seed=7):
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.monotonic() - start
            pieces.append(chunk.choices[0].delta.content)
    text = "".join(pieces)
    return {"what": "streamed chat", "ok": len(pieces) > 1, "shown": f"{len(pieces)} pieces: {text!r}"}


def structured_answer(client: Any) -> dict[str, Any]:
    """An answer that must match a JSON schema; the random weights would never produce one by themselves."""
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    messages = [{"role": "user", "content": "How is the queue?"}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=200, response_format=response_format, temperature=0
    )
    text = answer.choices[0].message.content or ""
    try:
        value = json.loads(text)
        ok = isinstance(value["sure"], bool) and value["mood"] in ("calm", "busy") and len(value) == 2
    except (ValueError, KeyError, TypeError):
        ok = False
    return {"what": "structured answer", "ok": ok, "shown": text}


def tool_call(client: Any) -> dict[str, Any]:
    """A call of the one tool, demanded by the request."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(
        model="tiny",
        messages=messages,
        tools=[TOOL],
        tool_choice=choice,
        max_tokens=200,
        seed=7,
        stop=["</tool_call>"],
        logit_bias=dict.fromkeys(tokenizer.blank_ids(), -100),  # random weights would fill JSON with blanks
        extra_body={"include_stop_str_in_output": True},
    )
    calls = answer.choices[0].message.tool_calls or []
    shown = ", ".join(f"{call.function.name}({call.function.arguments})" for call in calls)
    try:
        ok = len(calls) == 1 and json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")
    except (ValueError, KeyError, TypeError):
        ok = False
    return {"what": "tool call", "ok": ok, "shown": shown or "no call"}


def run(options: argparse.Namespace) -> int:
    clock = Clock(options.before)
    folder: Path = options.folder
    check_environment()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise DemoError(f"nothing can be written to {folder}: {error.strerror}", "Pass another --folder.") from error
    port = options.port or testing.free_port()
    check_machine(folder, port)
    with clock.phase("checkpoint"):
        model = checkpoints.make(options.architecture, folder)
    say(f"  server on http://127.0.0.1:{port}/v1, model name `tiny`, log {folder / 'server.log'}")
    grammar = json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})  # random weights like blanks
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--structured-outputs-config", grammar)
    with clock.phase("server start"):
        context = testing.serve(model, *flags, mode="lazy_eager", port=port, log=folder / "server.log", timeout=240)
        server = context.__enter__()
    try:
        results = []
        for ask in (streamed_chat, structured_answer, tool_call):
            with clock.phase(ask.__name__.replace("_", " ")):
                results.append(ask(server.client))
        if options.serve:
            stay_up(server, port)
    finally:
        with clock.phase("server stop"):
            context.__exit__(None, None, None)
    results.append({"what": "clean exit", "ok": server.exit_code == 0, "shown": f"exit code {server.exit_code}"})
    print(report(results, server.meters, clock.phases, options.architecture))
    return 0 if all(result["ok"] for result in results) else 1


def stay_up(server: testing.Server, port: int) -> None:
    """Leave the server running in the foreground until Ctrl-C."""
    say(f"""
The server is up; stop it with Ctrl-C. Try:
  curl -s http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "tiny", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 32}}'
""")
    try:
        while server.process.poll() is None:
            time.sleep(0.5)
        raise DemoError("the server ended by itself", f"See the end of its log:\n{server.log()[-3000:]}", code=1)
    except KeyboardInterrupt:
        say("stopping ...")


def _phase(text: str) -> tuple[str, float]:
    name, _, seconds = text.rpartition("=")
    try:
        return name, float(seconds)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=SECONDS") from None


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.hpusim.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--serve", action="store_true", help="leave the server running until Ctrl-C")
    parser.add_argument(
        "--port", type=_port, default=8000, help="port of the server, 0 picks a free one (default 8000)"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "demo", help="where checkpoint and log are kept"
    )
    parser.add_argument("--architecture", default="qwen3_moe", choices=sorted(checkpoints.ARCHITECTURES))
    parser.add_argument("--before", type=_phase, action="append", default=[], metavar="NAME=SECONDS")
    options = parser.parse_args(arguments)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave the server behind
        signal.signal(ending, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    try:
        return run(options)
    except DemoError as error:
        say(f"demo: {error}")
        return error.code
    except AssertionError as error:
        say(f"demo: {error}\nThe whole log is {options.folder / 'server.log'}; run it again after fixing the cause.")
        return 1
    except KeyboardInterrupt:
        say("interrupted: the server is stopped; run it again at any time")
        return 130


if __name__ == "__main__":
    sys.exit(main())
