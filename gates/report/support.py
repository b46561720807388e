# SPDX-License-Identifier: Apache-2.0
"""The support matrix: which context lengths a build is good for, by gate; of each model's and profile's newest run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gates.core import ledger
from gates.core.ledger import Run
from gates.core.result import GateResult, Verdict
from gates.report.collect import WORDS, Series, series

ANY = "any"  # the row of gates that broke before they came to any length


@dataclass(frozen=True)
class Matrix:
    """One table.

    Attributes:
        of: model, profile, lock and start of the run; every cell is of that run, or of one that asked the same before.
        rows: context length in tokens, and a word for each of `gates`.
    """

    of: str
    gates: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def _cells(result: GateResult, seen: Series | None) -> dict[int, str]:
    """Verdict by length. Where the gate failed, the lengths beyond the limit did; all, if it was for none of them."""
    if seen is None:
        return {}
    if result.verdict is not Verdict.FAIL or result.threshold is None:
        return dict.fromkeys(seen.rungs, WORDS[result.verdict])
    sign = 1 if result.threshold_direction == "max" else -1
    bad = {r for r, v in zip(seen.rungs, seen.values, strict=True) if sign * v > sign * result.threshold}
    return {r: WORDS[Verdict.FAIL if r in bad or not bad else Verdict.PASS] for r in seen.rungs}


def _one(run: Run, by_length: set[str]) -> Matrix | None:
    results = {name: result for name, result in run.results.items() if name in by_length}
    cells = {name: _cells(result, series(result)) for name, result in results.items()}
    rungs = sorted({rung for column in cells.values() for rung in column})
    if not results:
        return None

    def word(name: str, rung: int | None) -> str:
        # A gate that ended before it measured anything ended so for every length.
        return cells[name].get(rung, "not run") if cells[name] and rung else WORDS[results[name].verdict]

    gates = tuple(sorted(results))
    told = (run.server.get("model", "unknown"), f"profile {run.header.get('profile')}", f"lock {run.lock_hash}")
    return Matrix(
        of=", ".join(map(str, (*told, f"run {run.header.get('started')}"))),
        gates=gates,
        rows=tuple((str(r or ANY), tuple(word(name, r) for name in gates)) for r in rungs or [None]),
    )


def matrices(runs: Sequence[Run]) -> list[Matrix]:
    """A table for each model and profile of a ledger, in the order of their first runs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((str(run.server.get("model")), str(run.header.get("profile"))), []).append(run)
    by_length = {name for run in runs for name, result in run.results.items() if series(result) is not None}
    made = (_one(ledger.newest(group), by_length) for group in groups.values())
    return [matrix for matrix in made if matrix is not None]
