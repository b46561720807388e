# SPDX-License-Identifier: Apache-2.0
"""Writes the report: `report.html` (self-contained, readable in print and without colour) and `report.md`."""

from __future__ import annotations

from pathlib import Path

import jinja2

from gates.core import ledger
from gates.core.errors import GateError
from gates.report import collect, plots, support


def _verdict(page: collect.Page) -> str:
    counts = page.counts
    if counts["FAIL"]:
        text = f"Not fit: {counts['FAIL']} failed." + (f" {counts['ERROR']} broke." if counts["ERROR"] else "")
    elif counts["ERROR"]:
        text = f"Not judged: {counts['ERROR']} of the gates broke."
    else:
        text = "Fit, as far as it was tried." if counts["pass"] else "Nothing was tried."
    if not page.newest.ended:
        text += " The run did not come to its end."
    if page.not_run:
        text += f" Not run: {len(page.not_run)} of {len(page.not_run) + len(page.rows)} gates."
    return text


def markdown(page: collect.Page) -> str:
    """The newest run and the support matrix as Markdown tables."""
    run = page.newest
    lines = [
        f"# Gates: {collect.cell(run.server.get('model', 'unknown'))}",
        "",
        f"{_verdict(page)} Run {collect.cell(run.header.get('started'))}, lock {collect.cell(run.lock_hash)}, "
        f"profile {collect.cell(run.header.get('profile'))}.",
        "",
        "| gate | verdict | value | limit | floor | on a known fault | why | limit from |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in page.rows:
        cells = (row.gate, row.verdict, row.value, row.limit, row.floor, row.control, row.reason, row.source)
        lines.append(f"| {' | '.join(map(collect.cell, cells))} |")
    if page.not_run:
        lines += ["", f"Not run: {', '.join(page.not_run)}."]
    for matrix in support.matrices(page.runs):
        lines += ["", f"## Support matrix: {collect.cell(matrix.of)}", ""]
        lines.append(f"| context | {' | '.join(map(collect.cell, matrix.gates))} |")
        lines.append("|---" * (len(matrix.gates) + 1) + "|")
        lines += [f"| {rung} | {' | '.join(words)} |" for rung, words in matrix.rows]
    return "\n".join(lines) + "\n"


def html(page: collect.Page) -> str:
    """The page as one HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        server=page.newest.server,
        verdict=_verdict(page),
        plots=[plots.svg(series) for series in page.series],
        matrices=support.matrices(page.runs),
        earlier=len(page.runs) - len(page.history),
        checked=[r for r in page.newest.results.values() if isinstance(r.details.get("checks"), dict)],
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
    target = out / "report.html"
    made = {out / "report.md": markdown(page), target: html(page)}  # both, or neither is of this ledger
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in made.items():
            partial = file.with_name(f".{file.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(file)
    except OSError as error:
        raise GateError(
            f"cannot write the report ({error.strerror})", where=str(out), action="choose another folder"
        ) from error
    return target
