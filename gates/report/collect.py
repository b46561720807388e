# SPDX-License-Identifier: Apache-2.0
"""From ledger runs to the rows that the pages show."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

from gates.core import gate, ledger
from gates.core.ledger import Run
from gates.core.result import GateResult, Verdict, plain

_MARKUP = re.compile(r"[\\|`*~]|(?<!\w)_|_(?!\w)|(?<=\])\(")  # a bracket alone, as of an interval, is none
DUST = 1e-12  # what rounding leaves of a zero
SHOWN_RUNS = 100  # of the history
_RUNG = re.compile(r"[0-9]{1,9}")
_OF = re.compile(r"(\d{1,15})/(\d{1,15})")
WORDS = {Verdict.PASS: "pass", Verdict.FAIL: "FAIL", Verdict.SKIP: "skipped", Verdict.ERROR: "ERROR"}


@dataclass(frozen=True)
class Row:
    """One gate of the newest run, as text.

    Attributes:
        value: the figure with its interval and unit, "" where nothing was measured.
        control: the figure the gate saw on a known fault, and which.
        limit: the threshold with its direction.
        source: where the limit comes from.
        reason: why the verdict is what it is; "" where a gate passed and has nothing to add.
    """

    gate: str
    verdict: str
    value: str
    limit: str
    floor: str
    source: str
    reason: str
    duration: str
    control: str = ""


@dataclass(frozen=True)
class Series:
    """A figure by context rung, for one plot."""

    gate: str
    rungs: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    threshold: float | None
    direction: str
    unit: str
    floor: float | None


@dataclass
class Page:
    """All that a report shows of one ledger."""

    runs: list[Run]
    rows: list[Row] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    history: list[tuple[str, str, dict[str, int]]] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def newest(self) -> Run:
        return ledger.newest(self.runs)


def cell(text: object) -> str:
    """Text for a cell of a Markdown table or a heading: it can end neither, and is no markup, link or image."""
    return _MARKUP.sub(r"\\\g<0>", escape(plain(str(text)), quote=False))


def number(value: float) -> str:
    """Three significant digits, integers as they are."""
    value = 0.0 if abs(value) < DUST else value
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.3g}"


def _value(result: GateResult) -> str:
    seen = result.measurement
    if seen is None or seen.value is None:
        return ""
    text = f"{number(seen.value)} {seen.unit}"
    if seen.low is not None and seen.high is not None:
        text += f" [{number(seen.low)}, {number(seen.high)}]"
    return text


def _control(result: GateResult) -> str:
    if result.control is None:
        return ""
    unit = f" {result.measurement.unit}" if result.measurement is not None else ""
    return f"{number(result.control)}{unit} ({result.details.get('control')})"


def row(result: GateResult) -> Row:
    limit = ""
    if result.threshold is not None:
        limit = ("at most " if result.threshold_direction == "max" else "at least ") + number(result.threshold)
    return Row(
        gate=result.gate,
        verdict=WORDS[result.verdict],
        value=_value(result),
        limit=limit,
        floor="" if result.noise_floor is None else number(result.noise_floor),
        source=result.threshold_source,
        reason=result.reason,
        duration=f"{result.duration_s:.1f} s",
        control=_control(result),
    )


def _float(value: Any) -> float | None:
    """A JSON number as one that can be drawn; None for anything else, and for an integer that no float holds."""
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None


def _share(cell: Any) -> float | None:
    """A rung's cell as a number: a mean, a share written k/n, or hits by depth."""
    if isinstance(cell, dict) and "mean" in cell:
        return _float(cell["mean"])
    if isinstance(cell, dict) and cell and all(isinstance(v, bool) for v in cell.values()):
        return sum(cell.values()) / len(cell)
    if isinstance(cell, str) and (parts := _OF.fullmatch(cell)):
        return float(parts[1]) / max(1.0, float(parts[2]))
    return _float(cell)


def _band(cell: Any) -> tuple[float, float] | None:
    if not isinstance(cell, dict):
        return None
    low, high = _float(cell.get("p50")), _float(cell.get("p99"))
    return None if low is None or high is None else (low, high)


def series(result: GateResult) -> Series | None:
    """The result by context rung, where its details have one."""
    cells = result.details.get("rungs")
    if not isinstance(cells, dict) or result.measurement is None:
        return None
    points = [(int(k), _share(v), v) for k, v in cells.items() if _RUNG.fullmatch(k)]
    points = sorted((p for p in points if p[1] is not None), key=lambda p: p[0])
    if not points:
        return None
    bands = [band for _, _, c in points if (band := _band(c)) is not None]
    whole = len(bands) == len(points)
    return Series(
        gate=result.gate,
        rungs=tuple(p[0] for p in points),
        values=tuple(float(p[1]) for p in points if p[1] is not None),
        low=tuple(b[0] for b in bands) if whole else None,
        high=tuple(b[1] for b in bands) if whole else None,
        threshold=result.threshold,
        direction=result.threshold_direction,
        unit=result.measurement.unit,
        floor=result.noise_floor,
    )


def counts(run: Run) -> dict[str, int]:
    out = {word: 0 for word in WORDS.values()}
    for result in run.results.values():
        out[WORDS[result.verdict]] += 1
    return out


def page(runs: list[Run]) -> Page:
    """Collect everything of a ledger with at least one run."""
    newest = ledger.newest(runs)
    return Page(
        runs=runs,
        rows=[row(r) for r in newest.results.values()],
        series=[s for s in map(series, newest.results.values()) if s is not None],
        counts=counts(newest),
        not_run=[name for name in gate.discover() if name not in newest.results],
        history=[(str(r.header.get("started", "")), r.lock_hash, counts(r)) for r in runs[-SHOWN_RUNS:]],
    )
