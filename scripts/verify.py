# SPDX-License-Identifier: Apache-2.0
"""verify: prove that lock, patches, overlay, cache and trees belong together, and name what does not."""

from __future__ import annotations

import argparse
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts import cache, exporting, git, lint, lockfile, stack, worktree
from scripts.applying import SUBMODULE
from scripts.console import data, error
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.lock import compare_files, not_versioned, untracked
from scripts.lockfile import Lock, Upstream
from scripts.paths import Project, quote
from scripts.pip_sdist import cached as cached_sdist
from scripts.writing import write_commits


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("upstream", nargs="*", help="default: all of the lock")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print one line per proof that holds; what does not hold goes to stderr and makes the exit code 1."""
    lock = lockfile.load(project)
    bad = _report("lock", "the lock hash is that of its values", lambda: check_lock(lock))
    bad += _report("lock", "what it pins is under version control", lambda: check_versioned(project, lock))
    for name in args.upstream or lock.upstreams:
        upstream = lock.get(name)
        for what, check in checks(project, upstream):
            bad += _report(name, what, check)
    return Exit.CHECK_FAILED if bad else Exit.OK


def checks(project: Project, upstream: Upstream) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """(what holds, check) pairs; a check returns what does not hold."""
    yield "series, patches and overlay are the locked ones", lambda: compare_files(project, upstream)
    yield "cache holds the pinned source undamaged", lambda: check_cache(project, upstream)
    yield (
        "patches and overlay come to the locked tree, and export gives them back",
        lambda: check_stack(project, upstream),
    )
    yield "rules of lint hold", lambda: lint.check(lint.subject(project, upstream))[0]
    if project.tree(upstream.name).exists():
        yield "build/trees holds the locked tree", lambda: check_tree(project, upstream)


def _report(name: str, what: str, check: Callable[[], list[str]]) -> int:
    try:
        found = check()
    except ToolError as exc:
        if exc.code == Exit.UNREACHABLE:
            raise
        found = [str(exc)]
    except git.GitError as exc:
        found = [str(exc)]
    for line in found:
        error(f"{name}: {line}")
    if not found:
        data(f"{name}: ok, {what}")
    return len(found)


def check_lock(lock: Lock) -> list[str]:
    """The hash stated in the lock is that of its values."""
    lockfile.check_hash(lock)
    return []


def check_versioned(project: Project, lock: Lock) -> list[str]:
    """Every locked file is one that another checkout gets too."""
    return [not_versioned(path) for path in untracked(project, lock)]


def check_cache(project: Project, upstream: Upstream) -> list[str]:
    """The sdist has its sha256 and every object of the cached base its id."""
    if upstream.kind == "sdist":
        cached_sdist(project, upstream.pin)
    repo = ensure_base(project, upstream)
    try:
        git.run(repo, "fsck", "--full", "--no-dangling", "--no-progress")
    except git.GitError as exc:
        reason = next((line for line in exc.stderr.splitlines() if line.strip()), "fsck failed")
        action = f"remove {repo} and run `python -m scripts fetch`"
        return [f"the cached base of `{upstream.name}` is damaged: {reason} ({action})"]
    return []


def check_stack(project: Project, upstream: Upstream) -> list[str]:
    """Apply gives the locked tree hash; re-export of that gives every file back byte for byte."""
    repo = ensure_base(project, upstream)
    loaded = stack.load(project, upstream.name)
    commits = worktree.compute(repo, loaded, str(project.root))
    found = []
    with tempfile.TemporaryDirectory(prefix="frontier-") as folder:
        scratch = worktree.scratch_repository(Path(folder), repo)
        base = git.text(repo, "rev-parse", cache.BASE_REF)
        _, tree = write_commits(scratch, base, commits, worktree.BRANCH)
        if tree != upstream.patched_tree:
            found.append(f"patches and overlay come to tree {tree}, locked is {upstream.patched_tree}")
        old = {patch.name: patch.data for patch in loaded.patches}
        exported = exporting.read_patches(scratch, base, old)
        if [p.name for p in exported] != [p.name for p in loaded.patches]:
            found.append("export would write another series")
        found += [f"export would rewrite patch {p.name}" for p in exported if old.get(p.name) != p.data]
        if tuple(exporting.read_overlay(scratch, base)) != loaded.overlay:
            found.append("export would rewrite the overlay")
    return found


def check_tree(project: Project, upstream: Upstream) -> list[str]:
    """Every file in build/trees has the content and mode of the locked tree, and nothing lies beside them."""
    tree = project.tree(upstream.name)
    found = []
    try:
        git.run(tree, "fsck", "--full", "--no-dangling", "--no-progress")
        entries = git.ls_tree(tree, "HEAD")
        actual = git.text(tree, "rev-parse", "HEAD^{tree}")
        beside = git.run(tree, "status", "--porcelain", "-z", "--untracked-files=all").split(b"\0")
    except git.GitError as exc:
        reason = next((line for line in exc.stderr.splitlines() if line.strip()), "git cannot read it")
        return [f"{tree} is damaged: {reason} (rebuild it with `trees --force`)"]
    if actual != upstream.patched_tree:
        found.append(f"{tree} has tree {actual}, locked is {upstream.patched_tree} (run `trees` or `export`)")
    for path, (mode, name) in entries.items():
        if mode != SUBMODULE and (problem := differs(tree, path, mode, name)):
            found.append(f"{tree}: {quote(path)} {problem} (export it, or `trees --force` to discard)")
    found += [f"{tree}: {quote(r[3:])} is not part of the tree" for r in beside if r.startswith(b"??")]
    return found


def differs(tree: Path, path: bytes, mode: str, name: str) -> str | None:
    """How the file on disk differs from its tree entry, whatever git's index believes."""
    full = os.path.join(os.fsencode(tree), path)
    try:
        info = os.lstat(full)
        link = stat.S_ISLNK(info.st_mode)
        content = os.readlink(full) if link else Path(os.fsdecode(full)).read_bytes()
    except OSError as exc:
        return f"cannot be read: {exc.strerror}"
    actual = "120000" if link else "100755" if info.st_mode & stat.S_IXUSR else "100644"
    if actual != mode:
        return f"has mode {actual}, not {mode}"
    return None if git.blob_id(content) == name else "was changed"
