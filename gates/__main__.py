# SPDX-License-Identifier: Apache-2.0
"""`python -m gates run|list|report|compare`: the client gates, for anyone with a server's address."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from gates.core.errors import GateError
from gates.core.exits import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE
from gates.core.profile import PROFILES
from gates.core.result import plain
from gates.core.secrets import redacted

DEFAULT_LEDGER = Path("ledger/gates.jsonl")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gates", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run gates against a server and append to the ledger")
    run.add_argument("--base-url", default=os.environ.get("GATES_BASE_URL", "http://127.0.0.1:8000"))
    run.add_argument("--api-key", default=os.environ.get("GATES_API_KEY", ""), help="default: $GATES_API_KEY")
    run.add_argument("--model", help="served model to judge; default: the first that the server lists")
    run.add_argument("--only", action="append", default=[], metavar="NAME", help="gate or category; repeatable")
    run.add_argument("--list", action="store_true", help="name every gate, and run none")
    run.add_argument("--profile", default="quick", help=", ".join(PROFILES))
    run.add_argument("--floor", action="store_true", help="also measure the server against itself")
    run.add_argument("--reference", type=Path, help="scores of the CPU reference (python -m gates.oracle.passages)")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--fresh", action="store_true", help="start a new run even where one was killed")
    which.add_argument(
        "--resume",
        action="store_true",
        help="go on with the last run even if it ended: try again what it did not judge",
    )
    run.add_argument("--server-args", default="", help="the server's arguments, for the record")
    run.add_argument("--server-log", type=Path, help="the server's log, where it can be read: state hash, cold graphs")
    run.add_argument("--ledger", type=Path, default=DEFAULT_LEDGER)
    run.add_argument("--report", type=Path, default=None, metavar="DIR", help="render the report there afterwards")
    verbs.add_parser("list", help="name every gate")
    report = verbs.add_parser("report", help="render the ledger as HTML and Markdown")
    report.add_argument("--ledger", type=Path, default=DEFAULT_LEDGER)
    report.add_argument("--out", type=Path, default=Path("build/report"))
    compare = verbs.add_parser("compare", help="two ledgers side by side")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    return parser


def _print(text: str, stream: TextIO) -> None:
    """A line; where nobody reads any more (`| head`), it goes nowhere and the run goes on to its verdict."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _say(text: str) -> None:
    _print(text, sys.stderr)


def _out(text: str) -> None:
    _print(text, sys.stdout)


def _run(args: argparse.Namespace) -> int:
    from gates.core import gate, ledger, profile, runner, start, thresholds
    from gates.core.client import Client, ServerTrouble

    if args.list:
        return _list()
    chosen = runner.select(gate.discover(), args.only)
    sizes = profile.get(args.profile)
    client = Client(
        args.base_url,
        api_key=args.api_key,
        deadline_s=sizes.deadline_s,
        concurrency=sizes.concurrency,
        model=args.model,
    )
    try:
        facts = start.ask(client, _say)
    except ServerTrouble as error:  # no verdict on a server that is none, and no fault of the command
        _say(f"error: {plain(str(error), client.api_key)}; no gate was run: exit code {EXIT_ERROR}")
        return EXIT_ERROR
    if not args.model and len(client.models()) > 1:
        _say(f"the server lists several models; judged is `{facts.model}` (--model chooses)")
    identity = {
        "base_url": client.root,
        "profile": sizes.name,
        "server": facts.to_json(),
        "server_args": redacted(args.server_args),
        "asked_with": _asked_with(args),
        "only": sorted(set(args.only)),
    }
    ctx = gate.Context(
        client=client,
        facts=facts,
        profile=sizes,
        thresholds=thresholds.load(),
        measure_floor=args.floor,
        reference=args.reference,
        server_log=args.server_log,
        server_args=redacted(args.server_args),
        records=args.ledger.parent / "records",
    )
    with ledger.Writer(args.ledger) as writer:
        if writer.torn:
            _say(f"the last line of {args.ledger} was torn by a kill: dropped")
        resumed = None if args.fresh else writer.resumable(identity, again=args.resume)
        if resumed and resumed.stale and not args.resume:
            _say(f"the killed run of {resumed.header.get('started')} is too old to go on with (--resume does so)")
            resumed = None
        if resumed:
            begun, kept = resumed.header.get("started"), len(resumed.results)
            _say(f"resuming the run of {begun}: {kept} results kept (--fresh starts anew)")
        run = writer.resume(resumed) if resumed else writer.start(identity)
        code = runner.run_all(chosen, ctx, writer, run, say=_say)
    for entry in chosen:
        result = run.results[entry.name]
        _out(f"{result.verdict.value}\t{result.gate}\t{result.reason}")
    counted = Counter(run.results[entry.name].verdict.value for entry in chosen)
    _say(f"{', '.join(f'{count} {word}' for word, count in counted.items())}: exit code {code}")
    if args.report:
        from gates.report import render

        try:
            _say(f"report: {render.write(args.ledger, args.report)}")
        except GateError as error:  # the verdict stands, whether or not it could be printed
            _say(f"error: {plain(str(error))}")
            return code or EXIT_USAGE
    return code


def _asked_with(args: argparse.Namespace) -> dict[str, Any]:
    """What else decides a verdict: the gates themselves, their limits, the reference, what was asked for.

    Raises:
        GateError: a file that was named is not there.
    """
    root = Path(__file__).parent
    gates = hashlib.sha256()
    for path in sorted([*root.glob("core/*.py"), *root.glob("device/*.py"), root / "thresholds.toml"]):
        gates.update(path.read_bytes())
    digests = {}
    for name in ("reference", "server_log"):
        path = getattr(args, name)
        if path is not None and not path.is_file():
            raise GateError("no such file", where=f"--{name.replace('_', '-')} {path}", action="check the path")
        digests[name] = None if path is None else str(path)
    if args.reference is not None:
        digests["reference"] = hashlib.sha256(args.reference.read_bytes()).hexdigest()
    return {**digests, "gates": gates.hexdigest(), "floor": args.floor}


def _list() -> int:
    from gates.core import gate

    for entry in gate.discover().values():
        _out(f"{entry.name}\t{entry.category}\t{entry.summary}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all passed or skipped, 1 a gate failed, 2 wrong usage or input, 3 one broke or no server answered,
    130 interrupted."""
    args = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    try:
        if args.verb == "run":
            return _run(args)
        if args.verb == "list":
            return _list()
        from gates.report import compare, render

        if args.verb == "report":
            _out(str(render.write(args.ledger, args.out)))
            return 0
        _out(compare.table(args.before, args.after))
        return 0
    except GateError as error:
        _say(f"error: {plain(str(error), getattr(args, 'api_key', '').strip())}")
        return EXIT_USAGE
    except ModuleNotFoundError as error:
        _say(f"error: {error}: pip install -r requirements/gates.txt")
        return EXIT_USAGE
    except KeyboardInterrupt:
        _say("interrupted: the same command goes on where it was")
        return EXIT_INTERRUPTED
    except Exception:  # a bug of this tool must not look like a verdict on the server
        traceback.print_exc()
        return EXIT_ERROR


if __name__ == "__main__":
    code = main()
    if code == EXIT_INTERRUPTED:
        sys.stdout.flush()
        os._exit(code)  # requests still under way would hold the process until their deadlines
    sys.exit(code)
