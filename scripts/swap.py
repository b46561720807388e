# SPDX-License-Identifier: Apache-2.0
"""Put a finished folder in the place of another so that a kill leaves one of the two whole."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_EXCHANGE = 2


def _exchange(one: Path, two: Path) -> bool:
    """Swap two paths in one step (Linux renameat2). False where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _EXCHANGE) == 0)


def swap_in(new: Path, final: Path) -> None:
    """Make `new` the folder `final`; the previous one is removed. Both lie on one file system."""
    if not os.path.lexists(final):
        os.rename(new, final)
        return
    if _exchange(new, final):
        _discard(new)
        return
    aside = final.with_name(f".old-{final.name}")
    _discard(aside)
    os.rename(final, aside)
    os.rename(new, final)
    _discard(aside)


def _discard(path: Path) -> None:
    """Remove a folder, or the file or link that stood where a folder belongs."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def recover(final: Path) -> None:
    """Undo a :func:`swap_in` that was killed between its two renames, and clear half-built folders."""
    aside = final.with_name(f".old-{final.name}")
    if aside.exists():
        if final.exists():
            shutil.rmtree(aside)
        else:
            os.rename(aside, final)
    if final.parent.is_dir():
        for left in final.parent.glob(f".new-{final.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
