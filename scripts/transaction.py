# SPDX-License-Identifier: Apache-2.0
"""Change several project files so that a kill leaves all of them old or, after the next run, all of them new.

Contents are staged under build/journal, then a manifest is put in place by one rename: that is the commit. From there
on the change is carried out and, when interrupted, carried out again by the next run.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from scripts.errors import Exit, ToolError
from scripts.locking import exclusive
from scripts.paths import Project

_MANIFEST = "manifest.json"


class Transaction:
    """Collects writes and removals; they happen when the `with` block ends without an exception."""

    def __init__(self, project: Project) -> None:
        self._root = project.root
        self._folder = project.build / "journal"
        self._steps: list[dict[str, str | None]] = []

    def __enter__(self) -> Transaction:
        recover_root(self._root, self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self._folder / "lock"):
            self._clear_stages()
            self._stage = Path(tempfile.mkdtemp(prefix=".stage-", dir=self._folder.parent))
            self._held = os.open(self._stage, os.O_RDONLY)
            fcntl.flock(self._held, fcntl.LOCK_EX)
        return self

    def _clear_stages(self) -> None:
        """Remove what killed runs staged and never committed: each run under way holds its own."""
        for left in self._folder.parent.glob(".stage-*"):
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            except BlockingIOError:
                continue
            finally:
                os.close(handle)

    def write(self, path: Path, content: bytes, mode: str = "100644") -> None:
        """Give `path` this content; mode 120000 makes a link with `content` as its target."""
        name = str(len(self._steps))
        staged = self._stage / name
        if mode == "120000":
            os.symlink(content, os.fsencode(staged))
        else:
            staged.write_bytes(content)
            staged.chmod(0o755 if mode == "100755" else 0o644)
        self._steps.append({"path": self._relative(path), "staged": name})

    def remove(self, path: Path) -> None:
        """Remove `path`."""
        self._steps.append({"path": self._relative(path), "staged": None})

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._root)

    def _refuse_obstacles(self) -> None:
        """Refuse before the commit what could not be carried out after it: files in the way of folders and back."""
        leaving = {self._root / str(step["path"]) for step in self._steps if step["staged"] is None}
        for step in self._steps:
            if step["staged"] is None:
                continue
            target = self._root / str(step["path"])
            above = [p for p in target.parents if self._root in p.parents and not p.is_dir() and os.path.lexists(p)]
            inside = [p for p in target.rglob("*") if not p.is_dir() or p.is_symlink()] if _is_folder(target) else []
            if found := [p for p in (*above, *inside) if p not in leaving]:
                raise ToolError(
                    f"`{step['path']}` cannot be written: {os.path.relpath(found[0], self._root)} is in its place",
                    where=str(found[0]),
                    action="move it out of the way and run the command again; nothing was changed",
                    code=Exit.REFUSED,
                )

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None and self._steps:
                self._refuse_obstacles()
                (self._stage / _MANIFEST).write_text(json.dumps(self._steps), encoding="utf-8")
                _sync(self._stage)
                with exclusive(self._folder / "lock"):
                    os.rename(self._stage, self._folder / "pending")
                    _carry_out(self._root, self._folder / "pending")
        finally:
            shutil.rmtree(self._stage, ignore_errors=True)
            os.close(self._held)


def recover(project: Project) -> None:
    """Finish what an interrupted run had committed, and forget what it had not."""
    recover_root(project.root, project.build / "journal")


def recover_root(root: Path, folder: Path) -> None:
    """As :func:`recover`, for the journal in `folder`."""
    pending = folder / "pending"
    if pending.exists():
        with exclusive(folder / "lock"):
            if (pending / _MANIFEST).is_file():
                _carry_out(root, pending)
            shutil.rmtree(pending, ignore_errors=True)


def _carry_out(root: Path, pending: Path) -> None:
    # Removals first: a path may turn from a file into a folder of files, or back.
    for step in sorted(_steps(pending), key=lambda step: bool(step["staged"])):
        target = root / str(step["path"])
        if step["staged"] is None:
            if os.path.lexists(target) and not _is_folder(target):  # else a run before this one has replaced it
                target.unlink()
                _prune(target.parent, root)
            continue
        staged = pending / step["staged"]
        if os.path.lexists(staged):  # else a run before this one has moved it
            target.parent.mkdir(parents=True, exist_ok=True)
            if _is_folder(target):
                shutil.rmtree(target)  # empty folders only, see _refuse_obstacles
            _move(staged, target)
    # The manifest goes first: without it the rest is litter, with it the work would be done again.
    (pending / _MANIFEST).unlink()
    shutil.rmtree(pending)


def _steps(pending: Path) -> list[dict[str, str | None]]:
    """What the manifest in `pending` asks for. Raises ToolError when it cannot be read."""
    try:
        steps: list[dict[str, str | None]] = json.loads((pending / _MANIFEST).read_text(encoding="utf-8"))
        if all(isinstance(step["path"], str) and isinstance(step["staged"], (str, type(None))) for step in steps):
            return steps
    except (ValueError, TypeError, KeyError):
        pass
    raise ToolError(
        "the record of a change that was interrupted is damaged",
        where=str(pending / _MANIFEST),
        action="put what is still right of the files beside it in place by hand, then remove that folder; `git status` "
        "shows what had been written",
        code=Exit.REFUSED,
    )


def _move(staged: Path, target: Path) -> None:
    """Put `staged` in the place of `target` in one step, also where build/ lies on another file system."""
    try:
        os.replace(staged, target)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        beside = target.with_name(f".{target.name}.new")
        beside.unlink(missing_ok=True)
        shutil.copy2(staged, beside, follow_symlinks=False)
        os.replace(beside, target)
        staged.unlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _prune(folder: Path, root: Path) -> None:
    """Remove folders that became empty, up to the second level of the project."""
    while len(folder.relative_to(root).parts) > 2 and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        if path.is_symlink():
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
