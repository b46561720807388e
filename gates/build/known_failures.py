# SPDX-License-Identifier: Apache-2.0
"""Known failures of patch-queue tools, each tried on ours: what the files of P1 to P19 share.

Every scenario runs twice: on the tool, where it must hold, and on a build in which the code that prevents the failure
was taken out, where it must not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, weakened

Maker = Callable[..., Demo]
Edit = tuple[str, str, str]
Scenario = Callable[[Maker, Tool], None]
Cases = dict[str, tuple[Scenario, tuple[Edit, ...]]]


def registry(cases: Cases) -> Callable[..., Callable[[Scenario], Scenario]]:
    """A decorator `case(*edits)` that puts a scenario into `cases` with the edits of a build in which it must fail."""

    def case(*edits: Edit) -> Callable[[Scenario], Scenario]:
        def register(scenario: Scenario) -> Scenario:
            cases[scenario.__name__] = (scenario, edits)
            return scenario

        return register

    return case


def must_fail_weakened(cases: Cases, name: str, maker: Maker, folder: Path) -> None:
    """The scenario `name`, which holds on the tool, is seen failing on its weakened build."""
    scenario, edits = cases[name]
    weak = weakened(folder / "weak", *edits)  # outside: edits that no longer fit are no failure seen
    with pytest.raises(AssertionError):
        scenario(maker, weak)


def touch_series(demo: Demo) -> None:
    """Change the series without changing its meaning, so that the next `trees` rebuilds."""
    path = demo.patches / "series"
    path.write_text("# touched\n" + path.read_text())
