# SPDX-License-Identifier: Apache-2.0
"""Writes the report: `report.html` (self-contained, readable in print and without colour) and `report.md`."""

from __future__ import annotations

from pathlib import Path

import jinja2

from gates.core import ledger
from gates.core.errors import GateError
from gates.report import collect, plots


def _verdict(counts: dict[str, int]) -> str:
    if counts["ERROR"]:
        return "Not judged: a gate broke."
    return "Not fit." if counts["FAIL"] else "Fit, as far as it was tried." if counts["pass"] else "Nothing was tried."


def markdown(page: collect.Page) -> str:
    """The newest run and the support matrix as Markdown tables."""
    server = page.newest.header.get("server", {})
    lines = [
        f"# Gates: {server.get('model', 'unknown')}",
        "",
        f"{_verdict(page.counts)} Run {page.newest.header.get('started')}, lock {page.newest.lock_hash}, "
        f"profile {page.newest.header.get('profile')}.",
        "",
        "| gate | verdict | value | limit | floor | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in page.rows:
        why = (row.reason or row.source).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {row.gate} | {row.verdict} | {row.value} | {row.limit} | {row.floor} | {why} |")
    for model, rungs in page.matrix.items():
        gates = columns(rungs)
        lines += ["", f"## Support matrix: {model}", "", "| context | " + " | ".join(gates) + " |"]
        lines.append("|---" * (len(gates) + 1) + "|")
        lines += [f"| {r} | " + " | ".join(cells.get(g, "not run") for g in gates) + " |" for r, cells in rungs.items()]
    return "\n".join(lines) + "\n"


def columns(rungs: dict[str, dict[str, str]]) -> list[str]:
    return sorted({gate for cells in rungs.values() for gate in cells})


def html(page: collect.Page) -> str:
    """The page as one HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        server=page.newest.header.get("server", {}),
        verdict=_verdict(page.counts),
        plots=[plots.svg(series) for series in page.series],
        gates={model: columns(rungs) for model, rungs in page.matrix.items()},
        checked=[r for r in page.newest.results.values() if r.details.get("checks")],
    )


def write(path: Path, out: Path) -> Path:
    """Render a ledger into a folder; returns the HTML file.

    Raises:
        GateError: the ledger cannot be read or holds no run.
    """
    runs = ledger.load(path)
    if not runs:
        raise GateError("the ledger holds no run", where=str(path), action="run gates first: python -m gates run")
    page = collect.page(runs)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(markdown(page), encoding="utf-8")
    target = out / "report.html"
    target.write_text(html(page), encoding="utf-8")
    return target
