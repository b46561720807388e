# SPDX-License-Identifier: Apache-2.0
"""What a gate tool raises on purpose."""

from __future__ import annotations


class GateError(Exception):
    """A gate, ledger or server problem that a person can act on.

    Args:
        what: what failed, in one sentence.
        where: the file, address, gate or field it concerns.
        action: what to do next.
    """

    def __init__(self, what: str, *, where: str = "", action: str = "") -> None:
        self.what, self.where, self.action = what, where, action
        parts = [what]
        if where:
            parts.append(f"at {where}")
        text = " ".join(parts)
        if action:
            text += f": {action}"
        super().__init__(text)


class Skip(Exception):
    """Raised by a gate or a check that cannot be tried here; the text is the reason."""


class Failed(Exception):
    """What the server answered is wrong in itself, whatever is measured: FAIL. The text says how."""
