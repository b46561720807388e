# SPDX-License-Identifier: Apache-2.0
"""lock: write what patches and overlay come to, or with --check only compare."""

from __future__ import annotations

import argparse
from dataclasses import replace

from scripts import cache, git, lockfile, stack, worktree
from scripts.console import data, error, warn
from scripts.errors import Exit
from scripts.fetching import ensure_base
from scripts.lockfile import Lock, Upstream
from scripts.paths import Project
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
        found = differences(lock, now)
        for line in found:
            error(line)
        if found:
            return Exit.CHECK_FAILED
        data(lock.hash)
        return Exit.OK
    for path in untracked(project):
        warn(f"{path} is locked but not under version control yet: add it before you commit the lock")
    text = lockfile.render(now)
    if text != project.lock.read_text(encoding="utf-8"):
        with Transaction(project) as change:
            change.write(project.lock, text.encode())
    data(now.hash)
    return Exit.OK


def untracked(project: Project) -> list[str]:
    """Files below patches and overlay that the project's own git does not know."""
    try:
        listing = git.run(
            None, "-C", str(project.root), "ls-files", "-z", "--others", "--exclude-standard", "patches", "overlay"
        )
    except git.GitError:
        return []
    return [p.decode("utf-8", "replace") for p in listing.split(b"\0") if p]
