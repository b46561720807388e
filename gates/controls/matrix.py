# SPDX-License-Identifier: Apache-2.0
"""`python -m gates.controls.matrix`: every gate against every fault; red where due, green elsewhere.

By default the good server is the stand-in; with `--base-url` any healthy server is spoiled instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gates.controls import faults, proxy, toy_model, toy_server
from gates.core import control_values, gate, profile, records, server_facts, thresholds
from gates.core.client import Client, ServerTrouble
from gates.core.errors import GateError
from gates.core.exits import EXIT_ERROR, EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS, EXIT_USAGE
from gates.core.result import GateResult, Verdict, plain
from gates.core.runner import run_one

SERVER_ARGS = "of the controls"

# A fault may also trip gates that are not its own, where it spoils what they measure; named here, with the reason.
ALSO_RED: dict[str, dict[str, str]] = {
    "shifted-logits": {"api-logprobs": "an answer read back is scored by prompt log probabilities"},
    "duplicated-token": {
        "needles": "the value found is written with a doubled digit",
        "ruler-multi-key": "likewise",
        "api-sampling": "a stop string's text is doubled too",
        "api-stream": "the plain completion no longer equals the stream",
    },
    "marker-in-content": {
        "api-logprobs": "the rows spell the answer without the marker",
        "api-openai-client": "likewise for its schema",
        "api-structured": "a marker after a JSON answer makes it no JSON",
        "api-tool-choice": "two of its checks forbid markup in content",
        "api-tool-stream": "likewise beside a call that the model chooses",
    },
    "early-stop": {
        "endless-thinking": "nothing is said after the reasoning",
        "api-openai-client": "the plain answer no longer equals the stream",
        "api-logprobs": "usage no longer agrees with the rows",
        "api-stream": "the plain answer no longer equals the stream",
        "api-structured": "an empty answer matches no schema",
        "api-tool-choice": "nothing is said in the place of a call",
        "api-usage-errors": "usage no longer adds up",
    },
    "half-stream": {
        "api-openai-client": "the client cannot tell a torn stream from a short one",
        "stress": "it was seen healthy before, and owes its slow reader a whole stream",
    },
    "unconstrained-json": {
        "api-openai-client": "its schema is not enforced",
        "api-responses": "its text.format check is a structured output",
    },
    "endless-thinking": {
        "api-openai-client": "the plain answer no longer equals the stream",
        "api-chat": "reasoning is shown although hidden was asked",
        "api-sampling": "a stop string no longer ends the turn",
        "api-stream": "the plain answer no longer equals the stream",
        "api-structured": "no answer is left to judge",
    },
    "lax-validation": {"api-openai-client": "its refusal is of a temperature below zero"},
    "refusing-overload": {"isolation": "it drives the server past its capacity on purpose; ends in ERROR"},
}


def context(
    base_url: str, cache: Path, *, profile_name: str = "stand-in", reference: Path | None = None
) -> gate.Context:
    """A gate context; with short deadlines where the stand-in answers."""
    sizes = profile.get(profile_name)
    if profile_name == "stand-in":
        sizes = dataclasses.replace(sizes, deadline_s=20.0, gate_deadline_s=120.0)
    client = Client(base_url, deadline_s=sizes.deadline_s, concurrency=sizes.concurrency)
    facts = server_facts.read(client)
    # The proxy has an address of its own: only told arguments make it the server that was recorded.
    return gate.Context(
        client, facts, sizes, thresholds.load(), records=cache, reference=reference, server_args=SERVER_ARGS
    )


def verdicts(
    ctx: gate.Context, gates: Iterable[gate.Gate], results: dict[str, GateResult] | None = None
) -> dict[str, tuple[Verdict, str]]:
    """Verdict and reason by gate; whole results go into `results`."""
    out = {}
    for entry in gates:
        result = run_one(entry, ctx)
        out[entry.name] = (result.verdict, result.reason)
        if results is not None:
            results[entry.name] = result
    return out


def settled(
    ctx: gate.Context, gates: Iterable[gate.Gate], results: dict[str, GateResult] | None = None
) -> dict[str, tuple[Verdict, str]]:
    """Verdicts on a good server that its records know: what was only recorded is asked once more."""
    chosen = {entry.name: entry for entry in gates}
    out = verdicts(ctx, chosen.values(), results)
    new = [chosen[name] for name, (_, reason) in out.items() if reason == records.NOTHING_YET]
    return {**out, **verdicts(ctx, new, results)}


def spoiled(
    base_url: str,
    name: str,
    cache: Path,
    gates: Iterable[gate.Gate],
    results: dict[str, GateResult] | None = None,
    **options: object,
) -> dict[str, tuple[Verdict, str]]:
    """Verdicts of gates against the server spoiled by one fault; the cache holds what the good server recorded."""
    server, address = proxy.serve(base_url, faults.make(name))
    try:
        ctx = context(base_url, cache, **options)  # type: ignore[arg-type]
        client = Client(address, deadline_s=ctx.profile.deadline_s, concurrency=ctx.profile.concurrency)
        client._model = ctx.facts.model  # known from the good server, so that a broken list does not hide the gate
        return verdicts(dataclasses.replace(ctx, client=client), gates, results)
    finally:
        server.shutdown()


def unexpected(name: str, seen: dict[str, tuple[Verdict, str]], due: set[str]) -> dict[str, str]:
    """Gates that are red without being due. With a transport fault ERROR is right everywhere, only FAIL is wrong."""
    transport = faults.make(name).transport
    allowed = due | set(ALSO_RED.get(name, {}))
    wrong = {Verdict.FAIL} if transport else {Verdict.FAIL, Verdict.ERROR}
    return {k: v[1] for k, v in seen.items() if v[0] in wrong and k not in allowed}


def missed(name: str, seen: dict[str, tuple[Verdict, str]], due: set[str]) -> dict[str, str]:
    """Gates that should be red and are not. A control that only breaks its gate shows nothing: ERROR counts only where
    the server is none any more."""
    red = {Verdict.FAIL, Verdict.ERROR} if faults.make(name).transport else {Verdict.FAIL}
    return {k: f"{seen[k][0].value} {seen[k][1]}".strip() for k in sorted(due) if seen[k][0] not in red}


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every control did what it is to do, 1 one did not, or the server was red before it was spoiled,
    else those of `python -m gates`. A control that cannot be shown, as its gates are skipped here, is one that did not
    where it was asked for by name or the server is the stand-in."""
    parser = argparse.ArgumentParser(prog="python -m gates.controls.matrix", description=__doc__)
    parser.add_argument("--base-url", default=None)
    parser.add_argument("--profile", default="stand-in", help="`tiny` for the served tiny Beam, `quick` for a real one")
    parser.add_argument("--reference", type=Path, help="scores of the CPU reference (python -m gates.oracle.passages)")
    parser.add_argument("--only", action="append", default=[], choices=faults.NAMES, help="fault; repeatable")
    parser.add_argument("--own", action="store_true", help="per fault only its own gates, where the server is slow")
    parser.add_argument("--record", action="store_true", help="keep what each gate saw in gates/control_values.json")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except GateError as error:
        print(f"error: {plain(str(error))}", file=sys.stderr)
        return EXIT_ERROR if isinstance(error, ServerTrouble) else EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    base = args.base_url or toy_server.start()[1]
    names = args.only or faults.NAMES
    all_gates = [g for g in gate.discover().values() if not args.own or not set(names).isdisjoint(g.faults)]
    good_cache = Path(tempfile.mkdtemp(prefix="gate-controls-"))
    reference = args.reference or (None if args.base_url else toy_model.reference(good_cache))
    options = {"profile_name": args.profile, "reference": reference}
    healthy = settled(context(base, good_cache, **options), all_gates)
    unfit = {k: f"{v[0].value} {v[1]}" for k, v in healthy.items() if v[0] not in (Verdict.PASS, Verdict.SKIP)}
    print("healthy", unfit)
    print("not tried here", {k: v[1] for k, v in healthy.items() if v[0] is Verdict.SKIP}, flush=True)
    wrong = len(unfit)  # a gate that is red on a good server shows nothing by being red on a spoiled one
    controls: dict[str, control_values.Control] = {}
    for name in names:
        cache = Path(tempfile.mkdtemp(prefix="gate-controls-"))
        shutil.copytree(good_cache, cache, dirs_exist_ok=True)
        passing = [g for g in all_gates if healthy[g.name][0] is Verdict.PASS]
        chosen = [g for g in passing if not args.own or name in g.faults]
        results: dict[str, GateResult] = {}
        seen = spoiled(base, name, cache, chosen, results, **options)
        own = {g.name for g in all_gates if name in g.faults}
        due = own & set(seen)
        red = {k for k, v in seen.items() if v[0] in (Verdict.FAIL, Verdict.ERROR)}
        for gate_name in sorted(due & red):
            figure = results[gate_name].measurement
            if figure is not None and figure.value is not None:
                controls.setdefault(gate_name, control_values.Control(name, figure.value, figure.unit))
        if not due:
            print(f"{name}: not shown here, none of its gates passed before: {sorted(own)}")
            wrong += bool(args.only or not args.base_url)
        unseen, extra = missed(name, seen, due), unexpected(name, seen, due)
        wrong += bool(unseen or extra)
        print(
            f"{name}: red {sorted(red & due)}, also {sorted(red - due)}; missed {unseen}; unexpected {extra}",
            flush=True,
        )
    if args.record:
        control_values.save(args.profile, controls)
    return EXIT_FAIL if wrong else EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
