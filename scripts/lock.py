# SPDX-License-Identifier: Apache-2.0
"""lock: write what patches and overlay come to, or with --check only compare."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from scripts import cache, git, lockfile, stack, worktree
from scripts.console import data, error
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.lockfile import Lock, Upstream
from scripts.paths import Project, unquote
from scripts.transaction import Transaction


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when the lock is not current")


def current(project: Project, upstream: Upstream) -> Upstream:
    """`upstream` with the values its base, patches and overlay come to now."""
    cached = ensure_base(project, upstream)
    loaded = stack.load(project, upstream.name)
    tree = worktree.patched_tree(cached, worktree.compute(cached, loaded, str(project.root)))
    return replace(
        upstream,
        base_tree=upstream.base_tree or cache.tree_of(cached),
        patched_tree=tree,
        digest=loaded.digest,
        files=loaded.digests,
    )


def differences(lock: Lock, now: Lock) -> list[str]:
    """Where `lock` and `now` disagree, a sentence each, naming files."""
    found = []
    for name, old in lock.upstreams.items():
        new = now.upstreams[name]
        found += differing(old.files, new.files)
        for key in ("base_tree", "patched_tree", "digest"):
            if getattr(old, key) != getattr(new, key):
                found.append(f"{name}: {key.replace('_', ' ')} is {getattr(new, key)}, locked {getattr(old, key)}")
    if lock.recorded_hash != lock.hash:
        found.append(f"lock hash stated {lock.recorded_hash[:16]}, the values of the lock come to {lock.hash[:16]}")
    return found


def differing(locked: dict[str, str], actual: dict[str, str]) -> list[str]:
    """Where two listings of files disagree, a sentence each."""
    found = []
    for path in sorted({*locked, *actual}):
        if path not in actual:
            found.append(f"{path} is locked but missing")
        elif path not in locked:
            found.append(f"{path} is not locked")
        elif locked[path] != actual[path]:
            found.append(f"{path} differs from its locked sha256")
    return found


def compare_files(project: Project, upstream: Upstream) -> list[str]:
    """Where the files of the project differ from those locked for `upstream`; contents need not parse."""
    return differing(upstream.files, stack.digests(project, upstream.name))


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the lock hash."""
    lock = lockfile.load(project)
    now = lock
    for upstream in lock.upstreams.values():
        now = now.with_upstream(current(project, upstream))
    if args.check:
        found = [*differences(lock, now), *map(not_versioned, untracked(project, now))]
        for line in found:
            error(line)
        if found:
            return Exit.CHECK_FAILED
        data(lock.hash)
        return Exit.OK
    refuse_untracked(project, now)
    text = lockfile.render(now)
    if text != project.lock.read_text(encoding="utf-8"):
        with Transaction(project) as change:
            change.write(project.lock, text.encode())
    data(now.hash)
    return Exit.OK


def refuse_untracked(project: Project, lock: Lock) -> None:
    """Raise ToolError for files that `lock` would pin while no checkout but this one has them."""
    if found := untracked(project, lock):
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise ToolError(
            f"the lock would pin {len(found)} files that version control does not have: {shown}",
            where=str(project.root),
            action=f"`git add{' -f' if ignored(project, found[0]) else ''}` those that belong to the stack (`git add "
            "-N` is enough), move the others away, then run the command again; nothing was changed",
        )


def not_versioned(path: str) -> str:
    """The sentence for a locked file that version control does not have."""
    return f"{path} is not under version control: `git add` it, or move it away and run `python -m scripts lock`"


def untracked(project: Project, lock: Lock) -> list[str]:
    """Files listed in `lock` that the project's git does not have, ignored ones too; none where the lock is not in git.

    A project that is no checkout, or lies in a repository that does not hold it, has no version control to agree with.
    """
    try:
        known = _git(project, "ls-files", "-z", "--", "upstream.lock", "patches", "overlay")
    except git.GitError:
        return []
    if b"upstream.lock" not in (tracked := set(known.split(b"\0"))):
        return []
    listed = {path for upstream in lock.upstreams.values() for path in upstream.files}
    return sorted(path for path in listed if _bytes(path) not in tracked)


def ignored(project: Project, path: str) -> bool:
    """Whether a .gitignore keeps `path` out, so that a plain `git add` would refuse it."""
    try:
        _git(project, "check-ignore", "-q", "--", os.fsdecode(_bytes(path)))
    except git.GitError:
        return False
    return True


def _git(project: Project, *words: str) -> bytes:
    return git.run(None, "-C", str(project.root), *words)


def _bytes(path: str) -> bytes:
    """The name on disk of an entry of the lock, which quotes overlay paths that are not plain ASCII."""
    overlay, upstream, name = (*path.split("/", 2), "", "")[:3]
    return f"{overlay}/{upstream}/".encode() + (unquote(name) if name.startswith('"') else os.fsencode(name))
