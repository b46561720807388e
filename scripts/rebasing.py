# SPDX-License-Identifier: Apache-2.0
"""Rehearse a stack on another base, in memory: what becomes of every patch and overlay file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scripts import cache, carrying, git, git_source, pip_sdist, stack, worktree
from scripts.api_drift import Drift, Pair, find_drift
from scripts.applying import TreeState, apply_patch
from scripts.errors import ToolError
from scripts.fetching import ensure_base
from scripts.lockfile import Lock, Upstream
from scripts.paths import Project
from scripts.python_index import Index
from scripts.stack import Stack

_RELEASE = re.compile(r"^(?:.*/)?v?(\d+(?:\.\d+)+(?:(?:a|b|rc|\.post|\.dev)\d+)*)$")


@dataclass(frozen=True)
class Rehearsal:
    """What a rebase would do. `collisions`: overlay path -> what upstream has there now."""

    before: Upstream
    after: Upstream
    rows: list[carrying.Carried]
    collisions: dict[bytes, str]
    drift: list[Drift]

    @property
    def conflicts(self) -> list[carrying.Carried]:
        return [row for row in self.rows if row.outcome == carrying.CONFLICT]


def target(project: Project, upstream: Upstream, to: str) -> Upstream:
    """The lock entry of `upstream` at tag, branch, commit or release `to`, its base cached and its tree known."""
    if upstream.kind == "sdist":
        if not _RELEASE.match(to):
            raise ToolError(f"`{to}` is no release", where="command line", action="give one as on the index: 1.2.3")
        address = f"{upstream.address.partition('==')[0]}=={to}"
        _, digest = pip_sdist.download(project, address, None)
        found = replace(upstream, address=address, version=to, pin=digest)
    else:
        local = project.sources.get(upstream.name)
        address = local.as_uri() if local is not None and local.is_dir() else upstream.address
        commit, ref = git_source.resolve(address, to)
        release = _RELEASE.match(ref or to)
        version = release[1] if release else f"{upstream.version.partition('.post')[0]}.post1"
        found = replace(upstream, ref=ref, version=version, pin=commit)
    found = replace(found, base_tree="", patched_tree="")
    if found.pin == upstream.pin:
        raise ToolError(
            f"`{upstream.name}` is at {to} already",
            where=str(project.lock),
            action="name another tag, branch or commit",
        )
    return replace(found, base_tree=cache.tree_of(ensure_base(project, found)))


def rehearse(
    project: Project,
    lock: Lock,
    before: Upstream,
    after: Upstream,
    loaded: Stack,
    drop: tuple[str, ...],
    by_hand: dict[str, carrying.Contents] | None = None,
) -> Rehearsal:
    """Carry every patch over and look for what else breaks. Nothing is written.

    `by_hand` has, for each patch whose conflict was resolved, what its files became; nothing where it was dropped.
    """
    if unknown := [name for name in drop if name not in {p.name for p in loaded.patches}]:
        raise ToolError(f"no patch `{unknown[0]}` to drop", where=before.name, action="see the series for names")
    old_repo, new_repo = ensure_base(project, before), ensure_base(project, after)
    rows: list[carrying.Carried] = []
    with git.Objects(old_repo) as old_objects, git.Objects(new_repo) as new_objects:
        old = TreeState(git.ls_tree(old_repo, cache.BASE_REF), old_objects.read)
        new = TreeState(git.ls_tree(new_repo, cache.BASE_REF), new_objects.read)
        old_index = index_of(before.name, dict(old.entries), old_objects.read)
        new_index = index_of(before.name, dict(new.entries), new_objects.read)
        for patch in loaded.patches:
            row = carrying.Carried(patch, carrying.DROPPED)
            if by_hand and patch.name in by_hand:
                row = carrying.resolved(new, patch, by_hand[patch.name])
                carrying.advance(new, row)
            elif patch.name not in drop:
                row = carrying.carry(old, new, patch)
                if row.outcome != carrying.CONFLICT:
                    carrying.advance(new, row)
            rows.append(row)
            apply_patch(old, patch, str(project.root))
        collisions = {f.path: reason for f in loaded.overlay if (reason := new.occupied(f.path))}
        drift = find_drift(Pair(old_index, new_index), consumers(project, lock, before.name))
    return Rehearsal(before, after, rows, collisions, drift)


def index_of(upstream: str, entries: dict[bytes, tuple[str, str]], read: Callable[[str], bytes]) -> Index:
    """Index of the Python package of an upstream tree."""
    package = upstream.replace("-", "_")
    files: dict[str, Callable[[], bytes]] = {}
    for path, (mode, name) in entries.items():
        if mode != "120000" and path.endswith(b".py") and path.startswith(package.encode() + b"/"):
            files[path.decode("utf-8", "surrogateescape")] = lambda name=name: read(name)  # type: ignore[misc]
    return Index(package, files)


def consumers(project: Project, lock: Lock, upstream: str) -> dict[str, bytes]:
    """Python sources that use `upstream`: every overlay, and the patched trees of the other upstreams."""
    found: dict[str, bytes] = {}
    for name, other in lock.upstreams.items():
        loaded = stack.load(project, name)
        for file in loaded.overlay:
            if file.path.endswith(b".py") and file.mode != "120000":
                found[f"overlay/{name}/{file.path.decode('utf-8', 'surrogateescape')}"] = file.data
        if name == upstream:
            continue
        repo = ensure_base(project, other)
        package = name.replace("-", "_").encode()
        with git.Objects(repo) as objects:
            state = TreeState(git.ls_tree(repo, cache.BASE_REF), objects.read)
            for patch in loaded.patches:
                apply_patch(state, patch, str(project.root))
            for path, (mode, _) in state.entries.items():
                if mode != "120000" and path.startswith(package + b"/") and path.endswith(b".py"):
                    found[f"{name}/{path.decode('utf-8', 'surrogateescape')}"] = state.content(path)
    return found


def patched_tree_path(project: Project, name: str) -> Path:
    """Where the session of a rebase of `name` keeps its tree."""
    return project.build / "rebase" / name / "tree"


def unexported_work(project: Project, name: str) -> str | None:
    """Why a rebase would leave work behind in build/trees, or None."""
    tree = project.tree(name)
    return worktree.unexported(tree, worktree.read_stamp(tree)) if tree.exists() else None
