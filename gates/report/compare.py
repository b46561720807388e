# SPDX-License-Identifier: Apache-2.0
"""Two ledgers side by side: what changed verdict, and by how much the figures moved."""

from __future__ import annotations

from pathlib import Path

from gates.core import ledger
from gates.core.errors import GateError
from gates.report.collect import number, row


def table(before: Path, after: Path) -> str:
    """A Markdown table of the newest run of each ledger.

    Raises:
        GateError: a ledger cannot be read or holds no run.
    """
    newest = []
    for path in (before, after):
        runs = ledger.load(path)
        if not runs:
            raise GateError("the ledger holds no run", where=str(path), action="run gates first")
        newest.append(runs[-1])
    old, new = newest
    lines = [
        f"| gate | {old.lock_hash} | {new.lock_hash} | moved | note |",
        "|---|---|---|---|---|",
    ]
    for gate in [*old.results, *(g for g in new.results if g not in old.results)]:
        a, b = old.results.get(gate), new.results.get(gate)
        left = f"{row(a).verdict} {row(a).value}".strip() if a else "not run"
        right = f"{row(b).verdict} {row(b).value}".strip() if b else "not run"
        moved = ""
        values = [r.measurement.value for r in (a, b) if r and r.measurement and r.measurement.value is not None]
        if len(values) == 2:
            moved = f"{values[1] - values[0]:+.3g}" if values[0] != values[1] else "0"
        note = ""
        if a and b and a.verdict is not b.verdict:
            note = "verdict changed"
        if a and b and a.threshold != b.threshold and None not in (a.threshold, b.threshold):
            note = (note + "; " if note else "") + f"limit {number(a.threshold or 0)} to {number(b.threshold or 0)}"
        lines.append(f"| {gate} | {left} | {right} | {moved} | {note} |")
    return "\n".join(lines)
