# SPDX-License-Identifier: Apache-2.0
"""One writer at a time: advisory locks that the kernel drops when the process dies."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from scripts.console import note


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold `path` alone; waits for another holder and says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"waiting for another run that holds {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
