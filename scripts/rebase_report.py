# SPDX-License-Identifier: Apache-2.0
"""A rehearsal as markdown. Hunks are shown without context: what is ours, and lines a patch takes out."""

from __future__ import annotations

from collections import Counter

from scripts.api_drift import Drift
from scripts.carrying import CONFLICT, DROPPED, EMPTY, Carried
from scripts.lockfile import Upstream
from scripts.paths import quote
from scripts.rebasing import Rehearsal

COLUMNS = "| patch | outcome | files | meaning |"
_ORDER = ("clean", "offset", "resolved", "empty", "conflict", "dropped")
_MEANING = {
    "clean": "the files it changes are the same",
    "offset": "same lines among the same neighbours, elsewhere in the file",
    "resolved": "merged, look at the hunks below",
    "empty": "upstream has it",
    "conflict": "needs a decision",
    "dropped": "left out on request",
}


def name_of(upstream: Upstream) -> str:
    """An upstream in a sentence."""
    ref = f"{upstream.ref}, " if upstream.ref else ""
    return f"{upstream.version} ({ref}{upstream.pin[:12]})"


def render(rehearsal: Rehearsal) -> str:
    """The whole report. It holds no date and no path of a machine, so that the same rebase gives the same text."""
    before, after = rehearsal.before, rehearsal.after
    counts = Counter(row.outcome for row in rehearsal.rows)
    total = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _ORDER if counts[outcome]) or "no patches"
    lines = [
        f"# {before.name}: {name_of(before)} to {name_of(after)}",
        "",
        f"{len(rehearsal.rows)} patches: {total}. {len(rehearsal.collisions)} overlay paths taken by upstream, "
        f"{len(rehearsal.drift)} uses of {before.name} that the new one breaks.",
        "",
        COLUMNS,
        "|---|---|---|---|",
    ]
    for row in rehearsal.rows:
        files = ", ".join(f"`{quote(c.path)}`" for c in row.patch.changes)
        lines.append(f"| {row.patch.name} | {row.outcome} | {files} | {_why(row)} |")
    lines += _details(rehearsal.rows)
    lines += _conflicts(rehearsal.rows)
    if rehearsal.collisions:
        lines += ["", "## Overlay paths that upstream has now", "", "| path | why |", "|---|---|"]
        lines += [f"| `{quote(path)}` | {why} |" for path, why in sorted(rehearsal.collisions.items())]
    if rehearsal.drift:
        lines += [
            "",
            f"## Uses of {before.name} that the new one breaks",
            "",
            "From syntax trees; nothing was run.",
            "",
        ]
        lines += ["| finder | what | where |", "|---|---|---|"]
        lines += _grouped(rehearsal.drift)
    return "\n".join(lines) + "\n"


def _grouped(drift: list[Drift]) -> list[str]:
    """One row per finding, with every place: file:line, line, ..."""
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for found in drift:
        file, _, line = found.place.rpartition(":")
        lines = places.setdefault((found.finder, found.what), {}).setdefault(file, [])
        if line not in lines:
            lines.append(line)
    rows = []
    for (finder, what), files in sorted(places.items()):
        where = "; ".join(f"`{file}` {', '.join(sorted(lines, key=int))}" for file, lines in sorted(files.items()))
        rows.append(f"| {finder} | {what} | {where} |")
    return rows


def _why(row: Carried) -> str:
    if row.outcome == CONFLICT:
        return "; ".join(sorted({f"`{quote(c.path)}`: {c.why}" for c in row.conflicts}))
    return row.why or _MEANING[row.outcome]


def _details(rows: list[Carried]) -> list[str]:
    shown = [row for row in rows if row.details and row.outcome not in (EMPTY, DROPPED)]
    lines: list[str] = ["", "## Hunks that were resolved"] if shown else []
    for row in shown:
        lines += ["", f"### {row.patch.name}"]
        for detail in row.details:
            lines += ["", f"`{quote(detail.path)}`: {detail.why}", ""]
            lines += _fence("before", detail.before) + _fence("after", detail.after)
    return lines


def _conflicts(rows: list[Carried]) -> list[str]:
    shown = [row for row in rows if row.outcome == CONFLICT]
    lines: list[str] = ["", "## Conflicts"] if shown else []
    for row in shown:
        lines += ["", f"### {row.patch.name}", "", f"Guard: `{row.patch.header.get('Guard')}`"]
        for conflict in row.conflicts:
            lines += ["", f"`{quote(conflict.path)}`: {conflict.why}"]
    return lines


def _fence(title: str, text: bytes) -> list[str]:
    if not text:
        return [f"{title}: nothing", ""]
    return [f"{title}:", "", "```diff", text.decode("utf-8", "backslashreplace").rstrip("\n"), "```", ""]
