# SPDX-License-Identifier: Apache-2.0
"""Carry one patch from the tree it was made on to another one, in memory, and say what that took.

The only place where a 3-way merge happens; builds never use it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from scripts import diff, git
from scripts.applying import TreeState
from scripts.git import GitError, blob_id
from scripts.paths import quote
from scripts.stack import Patch

CLEAN, OFFSET, RESOLVED, EMPTY, CONFLICT, DROPPED = "clean", "offset", "resolved", "empty", "conflict", "dropped"
Contents = dict[bytes, tuple[str, bytes] | None]
_NEIGHBOURS = 3
_DIFF = ("--full-index", "-U0", "--inter-hunk-context=0", "--text", "--no-ext-diff", "--no-color", "--no-textconv",
         "--no-indent-heuristic", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip


@dataclass(frozen=True)
class Detail:
    """One hunk that is not as it was: text before, text after, and why. Zero context: our lines, removed lines."""

    path: bytes
    before: bytes
    after: bytes
    why: str


@dataclass(frozen=True)
class Conflict:
    """A file that needs a decision. Contents are None where that side has no file."""

    path: bytes
    why: str
    upstream: bytes | None
    patched: bytes | None
    merged: bytes | None
    mode: str


@dataclass
class Carried:
    """What became of one patch: outcome, its changes on the new tree, and what a reader has to look at.

    `why` is set where the outcome alone does not say how it came about.
    """

    patch: Patch
    outcome: str
    changes: list[diff.FileDiff] = field(default_factory=list)
    contents: Contents = field(default_factory=dict)
    details: list[Detail] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    why: str = ""


def carry(old: TreeState, new: TreeState, patch: Patch) -> Carried:
    """Merge `patch`, which applies to `old`, into `new`. Neither state is changed."""
    result = Carried(patch, CLEAN)
    outcomes: list[str] = []
    for change in patch.changes:
        outcomes.append(_carry_file(old, new, change, result))
    if CONFLICT in outcomes:
        result.outcome = CONFLICT
    elif all(o == EMPTY for o in outcomes):
        result.outcome = EMPTY
    elif RESOLVED in outcomes or EMPTY in outcomes:
        result.outcome = RESOLVED
    elif OFFSET in outcomes:
        result.outcome = OFFSET
    return result


def resolved(new: TreeState, patch: Patch, contents: Contents) -> Carried:
    """`patch` as it was resolved by hand: its files became `contents`, or it was dropped where there are none."""
    if not contents:
        return Carried(patch, DROPPED, why="left out at its conflict")
    result = Carried(patch, RESOLVED, why="resolved by hand, look at the hunks below")
    before = {change.path: change.hunks for change in patch.changes}
    for path in dict.fromkeys((*before, *contents)):
        hunks: tuple[diff.Hunk, ...] = ()
        why = "resolved by hand"
        if path in contents:
            entry, present = contents[path], new.entries.get(path)
            mode, theirs = (present[0], new.content(path)) if present else (None, b"")
            hunks = _record(result, path, mode, theirs, entry and entry[0], entry and entry[1])
            why += "" if present else "; a file that upstream has not is overlay"
        was, now = (b"".join(map(_text, part)) for part in (before.get(path, ()), hunks))
        result.details.append(Detail(path, was, now, why))
    return result


def advance(state: TreeState, carried: Carried) -> None:
    """Make the changes of a carried patch in `state`."""
    for path, entry in carried.contents.items():
        if entry is None:
            state.drop(path)
        else:
            state.put(path, *entry)


def _carry_file(old: TreeState, new: TreeState, change: diff.FileDiff, result: Carried) -> str:
    before = old.content(change.path) if change.old_mode else b""
    after = diff.apply(change, before)
    present = new.entries.get(change.path)
    if change.old_mode is None:
        return _carry_addition(new, change, after, result)
    if present is None:
        if change.new_mode is None:
            return EMPTY
        why = _where_it_went(new, change.path)
        return _conflict(result, Conflict(change.path, why, None, after, None, change.old_mode))
    mode, theirs = present[0], new.content(change.path)
    if change.new_mode is None:
        if theirs != before:
            why = "upstream changed the file that the patch removes"
            return _conflict(result, Conflict(change.path, why, theirs, None, theirs, mode))
        _record(result, change.path, mode, theirs, None, None)
        return CLEAN
    new_mode = change.new_mode if change.new_mode != change.old_mode else mode
    if theirs == before:
        _record(result, change.path, mode, theirs, new_mode, after)
        return CLEAN if mode == change.old_mode else RESOLVED
    merged, clean = merge(before, theirs, after)
    if not clean:
        why = "upstream changed the lines that the patch changes, or lines beside them"
        return _conflict(result, Conflict(change.path, why, theirs, after, merged, mode))
    if merged == theirs and new_mode == mode:
        for hunk in change.hunks:
            result.details.append(Detail(change.path, _text(hunk), b"", "upstream has it"))
        return EMPTY
    hunks = _record(result, change.path, mode, theirs, new_mode, merged)
    return _compare(change, hunks, before, theirs, result)


def _carry_addition(new: TreeState, change: diff.FileDiff, after: bytes, result: Carried) -> str:
    assert change.new_mode is not None
    if reason := new.occupied(change.path):
        theirs = new.content(change.path) if change.path in new.entries else None
        if theirs == after:
            return EMPTY
        why = f"the patch adds this file, and {reason}"
        return _conflict(result, Conflict(change.path, why, theirs, after, theirs, change.new_mode))
    _record(result, change.path, None, b"", change.new_mode, after)
    return CLEAN


def _conflict(result: Carried, conflict: Conflict) -> str:
    result.conflicts.append(conflict)
    return CONFLICT


def _record(
    result: Carried, path: bytes, mode: str | None, theirs: bytes, new_mode: str | None, merged: bytes | None
) -> tuple[diff.Hunk, ...]:
    """Note the change of one file on the new tree; returns its hunks."""
    hunks = hunks_between(theirs, merged or b"")
    old_id = diff.NULL_ID if mode is None else blob_id(theirs)
    new_id = diff.NULL_ID if merged is None else blob_id(merged)
    result.changes.append(diff.FileDiff(path, mode, new_mode, old_id, new_id, hunks))
    result.contents[path] = None if merged is None or new_mode is None else (new_mode, merged)
    return hunks


def _compare(change: diff.FileDiff, hunks: tuple[diff.Hunk, ...], old: bytes, new: bytes, result: Carried) -> str:
    """OFFSET when every hunk is as it was among the same neighbours, else RESOLVED with the details noted."""
    old_lines, new_lines = diff.split_lines(old), diff.split_lines(new)
    left = list(hunks)
    outcome = OFFSET
    for hunk in change.hunks:
        twin = next((h for h in left if (h.old, h.new) == (hunk.old, hunk.new)), None)
        if twin is None:
            outcome = RESOLVED
            result.details.append(Detail(change.path, _text(hunk), b"", "changed or gone in the merge"))
            continue
        left.remove(twin)
        if _around(old_lines, hunk) != _around(new_lines, twin):
            outcome = RESOLVED
            why = f"upstream changed a line within {_NEIGHBOURS} of it"
            result.details.append(Detail(change.path, _text(hunk), _text(twin), why))
    for hunk in left:
        outcome = RESOLVED
        result.details.append(Detail(change.path, b"", _text(hunk), "came out of the merge"))
    return outcome


def _around(lines: list[bytes], hunk: diff.Hunk) -> tuple[list[bytes], list[bytes]]:
    end = hunk.index + len(hunk.old)
    return lines[max(0, hunk.index - _NEIGHBOURS) : hunk.index], lines[end : end + _NEIGHBOURS]


def _text(hunk: diff.Hunk) -> bytes:
    """A hunk as in a patch file."""
    whole = diff.render([diff.FileDiff(b"f", "100644", "100644", diff.NULL_ID, "1" * 40, (hunk,))])
    return whole[whole.index(b"@@ ") :]


def _where_it_went(new: TreeState, path: bytes) -> str:
    name = path.rpartition(b"/")[2]
    alike = sorted(p for p in new.entries if p.rpartition(b"/")[2] == name)[:3]
    hint = f"; files of that name: {', '.join(quote(p) for p in alike)}" if alike and name != b"__init__.py" else ""
    return f"upstream deleted or moved the file{hint}"


def merge(base: bytes, upstream: bytes, patched: bytes) -> tuple[bytes | None, bool]:
    """3-way merge of lines. Returns (text, True), or (text with markers, or None for binary content, False)."""
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        folder = Path(scratch)
        for name, content in (("upstream", upstream), ("base", base), ("patched", patched)):
            (folder / name).write_bytes(content)
        command = ["merge-file", "-p", "--diff3", "-L", "upstream", "-L", "before", "-L", "patch"]
        try:
            return git.run(None, *command, *(str(folder / n) for n in ("upstream", "base", "patched"))), True
        except GitError as exc:
            return (exc.stdout, False) if exc.code < 128 else (None, False)


def hunks_between(old: bytes, new: bytes) -> tuple[diff.Hunk, ...]:
    """Zero-context hunks from `old` to `new`, by the same algorithm as `export`."""
    if old == new:
        return ()
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        folder = Path(scratch)
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        (folder / "a" / "f").write_bytes(old)
        (folder / "b" / "f").write_bytes(new)
        try:
            git.run(None, "-C", scratch, "diff", "--no-index", *_DIFF, "a/f", "b/f")
        except GitError as exc:  # 1 says that they differ
            text = exc.stdout.replace(b"diff --git a/a/f b/b/f", b"diff --git a/f b/f", 1)
            return diff.parse(text, from_git=True)[0].hunks
    return ()
