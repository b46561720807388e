# SPDX-License-Identifier: Apache-2.0
"""The one error type of the tool, and the exit codes it may end with."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of every verb."""

    OK = 0
    CHECK_FAILED = 1  # a check ran and found something: lint, verify, lock --check, guard
    USAGE = 2  # argparse's own
    BAD_INPUT = 3  # lock, series, patch, overlay, archive or tree cannot be used as they are
    UNREACHABLE = 4  # a source could not be read; nothing is known to be wrong with the project
    CONFLICT = 5  # a rebase needs a decision
    REFUSED = 6  # going on would lose work
    INTERRUPTED = 130


class ToolError(Exception):
    """What failed, where, and what to do next.

    Args:
        what: one sentence naming the thing.
        where: file, folder, address or patch concerned.
        action: the next step for the reader.
        code: exit code of the process.
    """

    def __init__(self, what: str, *, where: str, action: str, code: Exit = Exit.BAD_INPUT) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.action = action
        self.code = code

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  next:  {self.action}"
