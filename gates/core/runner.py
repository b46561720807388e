# SPDX-License-Identifier: Apache-2.0
"""Runs gates against one server, one after the other, each within its deadline, each to a ledger line."""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gates.core import ledger as ledgers
from gates.core.errors import GateError
from gates.core.gate import Context, Gate, Skip
from gates.core.result import GateResult, Verdict

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_ERROR = 0, 1, 2, 3


def run_one(gate: Gate, ctx: Context) -> GateResult:
    """Run one gate; whatever happens inside becomes a verdict.

    A gate that outlives its deadline is reported as ERROR and left behind: its thread is a daemon and its requests end
    at their own deadlines, so it cannot hold up the run or the process.
    """
    box: list[GateResult] = []

    def work() -> None:
        try:
            box.append(gate.run(ctx))
        except Skip as skip:
            box.append(GateResult(gate=gate.name, verdict=Verdict.SKIP, reason=str(skip)))
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
    return dataclasses.replace(box[0], duration_s=round(elapsed, 3))


def select(gates: Mapping[str, Gate], only: Sequence[str]) -> list[Gate]:
    """The gates to run: all, or those named (by name or category).

    Raises:
        GateError: a name that no gate and no category has.
    """
    if not only:
        return list(gates.values())
    known = set(gates) | {gate.category for gate in gates.values()}
    for name in only:
        if name not in known:
            raise GateError(f"no gate or category `{name}`", action="see --list")
    return [gate for gate in gates.values() if gate.name in only or gate.category in only]


def run_all(
    gates: Sequence[Gate],
    ctx: Context,
    writer: ledgers.Writer,
    run: ledgers.Run,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Run what the ledger's run does not hold yet.

    Returns:
        exit code: 3 if any gate ended in ERROR, else 1 if any FAILed, else 0.
    """
    for number, gate in enumerate(gates, 1):
        head = f"[{number}/{len(gates)}] {gate.name}"
        if gate.name in run.results:
            say(f"{head}: {run.results[gate.name].verdict.value} (already in the ledger)")
            continue
        estimate = gate.estimate_s.get(ctx.profile.name)
        say(f"{head} ..." + (f" about {estimate:g} s" if estimate else ""))
        result = run_one(gate, dataclasses.replace(ctx, progress=lambda text, head=head: say(f"{head}: {text}")))
        writer.add(run, result)
        say(
            f"{head}: {result.verdict.value} in {result.duration_s:.1f} s"
            + (f": {result.reason}" if result.reason else "")
        )
    asked = [run.results[gate.name].verdict for gate in gates]
    if Verdict.ERROR in asked:
        return EXIT_ERROR
    return EXIT_FAIL if Verdict.FAIL in asked else EXIT_PASS
