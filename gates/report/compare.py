# SPDX-License-Identifier: Apache-2.0
"""Two ledgers side by side: what changed verdict, and by how much the figures moved."""

from __future__ import annotations

from pathlib import Path

from gates.core import ledger
from gates.core.errors import GateError
from gates.report.collect import cell, number, row

TOLD = ("started", "base_url", "profile", "model", "version", "server_args", "asked_with")


def _told(run: ledger.Run, name: str) -> str:
    value = run.server.get(name) if name in ("model", "version") else run.header.get(name)
    if isinstance(value, dict):
        value = ", ".join(f"{k} {str(v)[:12]}" for k, v in sorted(value.items()) if v)
    return cell(value or "not told")


def table(before: Path, after: Path) -> str:
    """Markdown tables of the newest run of each ledger: what was asked of which server, and what came out.

    Raises:
        GateError: a ledger cannot be read or holds no run.
    """
    both = []
    for path in (before, after):
        runs = ledger.load(path)
        if not runs:
            raise GateError("the ledger holds no run", where=str(path), action="run gates first")
        both.append(ledger.newest(runs))
    old, new = both
    told = [[_told(run, name) for run in both] for name in TOLD]
    lines = ["| asked | before | after | note |", "|---|---|---|---|"]
    lines += [f"| {n} | {a} | {b} | {'' if a == b else 'differs'} |" for n, (a, b) in zip(TOLD, told, strict=True)]
    lines += [
        "",
        f"| gate | {cell(old.lock_hash)} | {cell(new.lock_hash)} | moved | note |",
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
        lines.append(f"| {cell(gate)} | {cell(left)} | {cell(right)} | {moved} | {note} |")
    return "\n".join(lines)
