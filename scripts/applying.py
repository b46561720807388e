# SPDX-License-Identifier: Apache-2.0
"""Apply a stack in memory: exact places, exact blob ids, all or nothing. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scripts import diff
from scripts.errors import ToolError
from scripts.git import blob_id
from scripts.header import ident_problem, to_message
from scripts.paths import quote
from scripts.stack import OverlayFile, Patch, Stack, check_path

AUTHOR = "vllm-gaudi-frontier <maintainers@invalid>"
SUBMODULE = "160000"


@dataclass(frozen=True)
class Commit:
    """One commit to be written: path -> (mode, content), or None where the path goes."""

    message: str
    author: str
    date: str  # YYYY-MM-DD
    changes: dict[bytes, tuple[str, bytes] | None]


@dataclass
class TreeState:
    """The files of a tree while patches are applied: entries, and contents known so far."""

    entries: dict[bytes, tuple[str, str]]
    read: Callable[[str], bytes]
    contents: dict[str, bytes] = field(default_factory=dict)
    _folders: set[bytes] | None = None

    def content(self, path: bytes) -> bytes:
        """Content of the file at `path`."""
        name = self.entries[path][1]
        if name not in self.contents:
            self.contents[name] = self.read(name)
        return self.contents[name]

    def put(self, path: bytes, mode: str, data: bytes) -> None:
        """Add or replace a file."""
        name = blob_id(data)
        self.contents[name] = data
        if path not in self.entries and self._folders is not None:
            self._folders.update(parents(path))
        self.entries[path] = (mode, name)

    def drop(self, path: bytes) -> None:
        """Remove a file."""
        del self.entries[path]
        self._folders = None

    def occupied(self, path: bytes) -> str | None:
        """What stands in the way of a new file at `path`, or None."""
        if path in self.entries:
            return "the tree has that file"
        if self._folders is None:
            self._folders = {p for known in self.entries for p in parents(known)}
        if path in self._folders:
            return "the tree has a folder of that name"
        for parent in parents(path):
            if parent in self.entries:
                return f"{quote(parent)} is no folder in the tree"
        return None

    def submodule(self, path: bytes) -> bytes | None:
        """The submodule that `path` is or lies in."""
        for part in (path, *parents(path)):
            if self.entries.get(part, ("", ""))[0] == SUBMODULE:
                return part
        return None


def parents(path: bytes) -> list[bytes]:
    """Every folder above `path`."""
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]


def apply_patch(state: TreeState, patch: Patch, where: str) -> Commit:
    """Apply one patch to `state`. Raises ToolError naming patch, file and reason; `state` is then of no use."""
    changes: dict[bytes, tuple[str, bytes] | None] = {}
    for change in patch.changes:
        if problem := _problem(state, change):
            raise _refuse(patch, where, f"{quote(change.path)}: {problem}")
        try:
            before = state.content(change.path) if change.old_mode else b""
            after = diff.apply(change, before)
        except diff.DiffError as exc:
            raise _refuse(patch, where, str(exc)) from exc
        if change.new_mode is None:
            state.drop(change.path)
            changes[change.path] = None
            continue
        check_path(change.path, change.new_mode, after, where=where)
        state.put(change.path, change.new_mode, after)
        changes[change.path] = (change.new_mode, after)
    author = patch.header.get("Author") or AUTHOR
    if problem := ident_problem(author):
        raise ToolError(
            f"patch `{patch.name}` cannot be a commit: {problem}",
            where=where,
            action="write `Author: Name <address>`, or leave the field out",
        )
    return Commit(to_message(patch.header, patch.name), author, patch.header.get("Last-Update"), changes)


def _problem(state: TreeState, change: diff.FileDiff) -> str | None:
    if inside := state.submodule(change.path):
        return f"lies in the submodule {quote(inside)}, whose files are not part of this tree"
    if change.old_mode is None:
        return state.occupied(change.path)
    if change.path not in state.entries:
        return "upstream does not have this file"
    mode = state.entries[change.path][0]
    if mode != change.old_mode:
        return f"mode is {mode}, the patch was made for {change.old_mode}"
    return None


def _refuse(patch: Patch, where: str, what: str) -> ToolError:
    return ToolError(
        f"patch `{patch.name}` does not apply: {what}",
        where=where,
        action="nothing was changed; restore patches and series. To drop or reorder patches, `git rebase -i "
        "refs/frontier/base` in build/trees and `export`: the ids of later patches move with them. `rebase` "
        "takes the stack to another upstream",
    )


def overlay_commit(state: TreeState, upstream: str, files: tuple[OverlayFile, ...], date: str, where: str) -> Commit:
    """Lay the overlay over `state`. Raises ToolError when a path is taken."""
    changes: dict[bytes, tuple[str, bytes] | None] = {}
    for file in files:
        problem = state.occupied(file.path)
        if inside := state.submodule(file.path):
            problem = f"it lies in the submodule {quote(inside)}"
        if problem:
            raise ToolError(
                f"overlay file {quote(file.path)} shadows upstream: {problem}",
                where=where,
                action="rename the overlay file, or change upstream's with a patch",
            )
        state.put(file.path, file.mode, file.data)
        changes[file.path] = (file.mode, file.data)
    return Commit(f"Overlay\n\nOverlay: {upstream}\n", AUTHOR, date, changes)


def apply_stack(state: TreeState, stack: Stack, where: str) -> list[Commit]:
    """The commits of the whole stack over `state`: one per patch, then one for the overlay (when it has files)."""
    commits = [apply_patch(state, p, f"{where}/patches/{stack.upstream}/{p.name}.patch") for p in stack.patches]
    date = max((c.date for c in commits), default="2000-01-01")
    if stack.overlay:
        commits.append(overlay_commit(state, stack.upstream, stack.overlay, date, f"{where}/overlay/{stack.upstream}"))
    return commits
