# SPDX-License-Identifier: Apache-2.0
"""`python -m gates run|list|report|compare`: the client gates, for anyone with a server's address."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gates.core.errors import GateError
from gates.core.runner import EXIT_USAGE

DEFAULT_LEDGER = Path("ledger/gates.jsonl")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gates", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run gates against a server and append to the ledger")
    run.add_argument("--base-url", default=os.environ.get("GATES_BASE_URL", "http://127.0.0.1:8000"))
    run.add_argument("--api-key", default=os.environ.get("GATES_API_KEY", ""), help="default: $GATES_API_KEY")
    run.add_argument("--only", action="append", default=[], metavar="NAME", help="gate or category; repeatable")
    run.add_argument("--profile", default="quick", help="tiny, quick or node")
    run.add_argument("--floor", action="store_true", help="also measure the server against itself")
    run.add_argument("--reference", type=Path, help="scores of the CPU reference (python -m gates.oracle.passages)")
    run.add_argument("--fresh", action="store_true", help="start a new run even where one can be resumed")
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(args: argparse.Namespace) -> int:
    from gates.core import gate, ledger, profile, runner, server_facts, thresholds
    from gates.core.client import Client

    chosen = runner.select(gate.discover(), args.only)
    sizes = profile.get(args.profile)
    client = Client(args.base_url, api_key=args.api_key, deadline_s=sizes.deadline_s, concurrency=sizes.concurrency)
    facts = server_facts.read(client)
    identity = {
        "base_url": client.root,
        "profile": sizes.name,
        "server": facts.to_json(),
        "server_args": args.server_args,
    }
    writer = ledger.Writer(args.ledger)
    resumed = None if args.fresh else ledger.resumable(args.ledger, identity)
    run = resumed or writer.start(identity)
    if resumed:
        _say(f"resuming the run of {run.header['started']}: {len(run.results)} results kept (--fresh starts anew)")
    ctx = gate.Context(
        client=client,
        facts=facts,
        profile=sizes,
        thresholds=thresholds.load(),
        measure_floor=args.floor,
        reference=args.reference,
        server_log=args.server_log,
    )
    code = runner.run_all(chosen, ctx, writer, run, say=_say)
    for entry in chosen:
        result = run.results[entry.name]
        print(f"{result.verdict.value}\t{result.gate}\t{result.reason}")
    if args.report:
        from gates.report import render

        _say(f"report: {render.write(args.ledger, args.report)}")
    return code


def _list() -> int:
    from gates.core import gate

    for entry in gate.discover().values():
        print(f"{entry.name}\t{entry.category}\t{entry.summary}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all passed or skipped, 1 a gate failed, 2 wrong usage or input, 3 a gate broke."""
    args = _parser().parse_args(argv)
    try:
        if args.verb == "run":
            return _run(args)
        if args.verb == "list":
            return _list()
        from gates.report import compare, render

        if args.verb == "report":
            print(render.write(args.ledger, args.out))
            return 0
        print(compare.table(args.before, args.after))
        return 0
    except GateError as error:
        _say(f"error: {error}")
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
