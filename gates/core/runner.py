# SPDX-License-Identifier: Apache-2.0
"""Runs gates against one server, one after the other, each within its deadline, each to a ledger line."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gates.core import control_values
from gates.core import ledger as ledgers
from gates.core.errors import Failed, GateError, Skip
from gates.core.exits import EXIT_ERROR, EXIT_FAIL, EXIT_PASS
from gates.core.gate import Context, Gate
from gates.core.result import GateResult, Verdict, plain

PAGES = " at the port pages' pace"
_COUNTED = re.compile(r"(\d+)/(\d+)")


def run_one(gate: Gate, ctx: Context) -> GateResult:
    """Run one gate; whatever happens inside becomes a verdict.

    A gate that outlives its deadline is reported as ERROR and left behind: its thread is a daemon, its requests end at
    the deadline, and no new one starts, so it cannot hold up the run or the process.
    """
    box: list[GateResult] = []
    ctx = dataclasses.replace(ctx, client=ctx.client.ending(ctx.profile.gate_deadline_s), seeds=set(), left_out=set())

    def work() -> None:
        try:
            box.append(gate.run(ctx))
        except Skip as skip:
            box.append(GateResult(gate=gate.name, verdict=Verdict.SKIP, reason=str(skip)))
        except Failed as failed:
            box.append(GateResult(gate=gate.name, verdict=Verdict.FAIL, reason=str(failed) or "failed"))
        except GateError as error:
            box.append(GateResult(gate=gate.name, verdict=Verdict.ERROR, reason=str(error)))
        except Exception as error:  # a bug in the gate: ERROR with its place, and the run goes on
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            box.append(GateResult(gate=gate.name, verdict=Verdict.ERROR, reason=reason))

    start = time.monotonic()
    thread = threading.Thread(target=work, name=f"gate-{gate.name}", daemon=True)
    thread.start()
    thread.join(ctx.profile.gate_deadline_s)
    elapsed = time.monotonic() - start
    if not box:
        reason = f"not finished after {ctx.profile.gate_deadline_s:g} s"
        return GateResult(gate=gate.name, verdict=Verdict.ERROR, reason=reason, duration_s=elapsed)
    seeds = box[0].seeds or tuple(sorted(ctx.seeds))
    result = dataclasses.replace(box[0], duration_s=round(elapsed, 3), seeds=seeds)
    if result.verdict in (Verdict.PASS, Verdict.FAIL):
        reason = "; ".join([*filter(None, [result.reason]), *sorted(ctx.left_out)])
        result = dataclasses.replace(result, reason=reason)
    known = control_values.of(ctx.profile.name, gate.name, result.measurement)
    if known is not None and result.control is None:
        result = dataclasses.replace(result, control=known.value, details={**result.details, "control": known.fault})
    return result.plain(ctx.client.api_key)


def select(gates: Mapping[str, Gate], only: Sequence[str]) -> list[Gate]:
    """The gates to run: all, or those named. A name that a gate and a category share is the gate's.

    Raises:
        GateError: a name that no gate and no category has.
    """
    if not only:
        return list(gates.values())
    known = set(gates) | {gate.category for gate in gates.values()}
    for name in only:
        if name not in known:
            raise GateError(f"no gate or category `{name}`", action="see `python -m gates list`")
    categories = set(only) - set(gates)
    return [gate for gate in gates.values() if gate.name in only or gate.category in categories]


def _about(seconds: float, text: str) -> str:
    """`text` around a time that is worth telling: none below a second, minutes and hours from two of them on."""
    if seconds < 1:
        return ""
    if seconds >= 2 * 3600:
        return text.format(f"{seconds / 3600:.1f} h")
    return text.format(f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")


def at_most_s(gate: Gate, ctx: Context) -> float:
    """Seconds of a gate's prompts at the port pages' rates (gates/core/load.py); 0 where its profile bounds none."""
    if gate.asks is None or ctx.profile.tokens_at_once is None:
        return 0.0
    try:
        # what it notes while it is asked for its sizes is no part of its result
        return sum(asked.seconds for asked in gate.asks(dataclasses.replace(ctx, seeds=set(), left_out=set())))
    except Skip:
        return 0.0


def _progress(head: str, say: Callable[[str], None]) -> Callable[[str], None]:
    """Says where a gate is; where it counts ("12/48 answers"), also how long the rest will take at that pace."""
    start = time.monotonic()

    def tell(text: str) -> None:
        counted = _COUNTED.match(text)
        rest = ""
        if counted and 0 < int(counted[1]) < int(counted[2]):
            pace = (time.monotonic() - start) / int(counted[1])
            rest = _about(pace * (int(counted[2]) - int(counted[1])), ", about {} left")
        say(f"{head}: {plain(text)}{rest}")

    return tell


def run_all(
    gates: Sequence[Gate],
    ctx: Context,
    writer: ledgers.Writer,
    run: ledgers.Run,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Run what the ledger's run does not hold yet.

    An estimate is what the gate took in an earlier run of the same profile, or else what its prompts take at the port
    pages' rates, and then what its own progress foretells.

    Returns:
        exit code: 1 if any gate FAILed, which is a verdict whatever else broke, else 3 if any ended in ERROR, else 0.
    """
    took = {
        name: result.duration_s
        for earlier in writer.runs
        if earlier.header.get("profile") == ctx.profile.name
        for name, result in earlier.results.items()
        if result.verdict in (Verdict.PASS, Verdict.FAIL)
    }
    foretold = {gate.name: at_most_s(gate, ctx) for gate in gates if gate.name not in run.results}
    if whole := sum(took.get(name, seconds) for name, seconds in foretold.items() if seconds):
        say(_about(whole, "long prompts: at most about {} in all, as last time or" + PAGES))
    for number, gate in enumerate(gates, 1):
        head = f"[{number}/{len(gates)}] {gate.name}"
        if gate.name in run.results:
            say(f"{head}: {run.results[gate.name].verdict.value} (already in the ledger)")
            continue
        before = _about(took.get(gate.name, 0.0), " about {}, as last time")
        say(f"{head} ..." + (before or _about(foretold[gate.name], " at most about {}" + PAGES)))
        result = run_one(gate, dataclasses.replace(ctx, progress=_progress(head, say)))
        writer.add(run, result)
        say(
            f"{head}: {result.verdict.value} in {result.duration_s:.1f} s"
            + (f": {result.reason}" if result.reason else "")
        )
    writer.end(run)
    asked = [run.results[gate.name].verdict for gate in gates]
    if Verdict.FAIL in asked:
        return EXIT_FAIL
    return EXIT_ERROR if Verdict.ERROR in asked else EXIT_PASS
