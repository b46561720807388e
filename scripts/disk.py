# SPDX-License-Identifier: Apache-2.0
"""A full or unwritable disk is one error of the tool, whoever meets it: Python or git."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.errors import ToolError
from scripts.git import GitError

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOTDIR)


@contextmanager
def written(what: str, where: Path, action: str) -> Iterator[None]:
    """Turn 'no space left' and refusals of the file system into `cannot write <what>`; other errors pass."""
    try:
        yield
    except (OSError, GitError) as exc:
        reason = exc.disk if isinstance(exc, GitError) else exc.strerror if exc.errno in _UNWRITABLE else None
        if reason is None:
            raise
        raise ToolError(f"cannot write {what}: {reason}", where=str(where), action=action) from exc
