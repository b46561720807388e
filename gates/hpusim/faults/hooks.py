# SPDX-License-Identifier: Apache-2.0
"""What the fault models share: registering callbacks and replacing attributes, both undone in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Undo:
    """Collects changes; calling it takes them back, last first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def append(self, hooks: list, callback: Callable) -> None:
        """Add `callback` to a list of hooks."""
        hooks.append(callback)
        self._steps.append(lambda: hooks.remove(callback))

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name`; returns the attribute it had."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._steps.append(lambda: setattr(owner, name, before))
        return before

    def then(self, step: Callable[[], None]) -> None:
        """Run `step` when the changes are taken back."""
        self._steps.append(step)

    def __call__(self) -> None:
        while self._steps:
            self._steps.pop()()
