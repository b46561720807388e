# SPDX-License-Identifier: Apache-2.0
"""What was done by hand about a patch in conflict, as the commit of that patch."""

from __future__ import annotations

from pathlib import Path

from scripts import git, stack, worktree
from scripts.applying import TreeState
from scripts.carrying import Contents
from scripts.errors import Exit, ToolError
from scripts.paths import Project, quote
from scripts.rebase_session import Session, commit_patch, refuse_loose, save
from scripts.rebasing import patched_tree_path


def resolve(project: Project, name: str, loaded: stack.Stack, session: Session) -> None:
    """Commit the index of the tree as the patch in conflict; no change against the commit before it drops the patch.

    Commits made in the tree by hand are taken for a part of the resolution. Raises ToolError, with nothing changed,
    for what is not finished, not added, or would be lost.
    """
    tree = patched_tree_path(project, name)
    _refuse_unfinished(tree, session.head)
    refuse_loose(tree)
    changes = contents_between(tree, session.head, git.text(tree, "write-tree"))
    marked = [p for p, e in changes.items() if e and b"\n<<<<<<< upstream\n" in b"\n" + e[1]]
    if marked:
        raise ToolError(
            f"{quote(marked[0])} still has conflict markers",
            where=str(tree),
            action="remove them, `git add` the file, then --continue",
            code=Exit.CONFLICT,
        )
    _refuse_taken(tree, name, loaded)
    patch = loaded.patches[session.next]
    if changes:
        commit_patch(tree, patch, changes, session.head)
    else:
        git.run(tree, "update-ref", worktree.BRANCH, session.head)
        git.run(tree, "symbolic-ref", "HEAD", worktree.BRANCH)
    session.resolved[patch.name] = git.text(tree, "rev-parse", "HEAD") if changes else ""
    session.next, session.waiting = session.next + 1, False
    save(project, name, session)


def contents_of(project: Project, name: str, session: Session) -> dict[str, Contents]:
    """What each patch resolved by hand did to its files; empty where it was dropped."""
    tree = patched_tree_path(project, name)
    return {p: contents_between(tree, f"{c}^", c) if c else {} for p, c in session.resolved.items()}


def contents_between(tree: Path, old: str, new: str) -> Contents:
    """The files that differ from `old` to `new`, as `new` has them."""
    changed = git.run(tree, "diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
    entries = git.ls_tree(tree, new)
    changes: Contents = {}
    with git.Objects(tree) as objects:
        for path in filter(None, changed.split(b"\0")):
            entry = entries.get(path)
            changes[path] = None if entry is None else (entry[0], objects.read(entry[1]))
    return changes


def _refuse_unfinished(tree: Path, head: str) -> None:
    if unmerged := git.run(tree, "ls-files", "-u", "-z"):
        path = unmerged.split(b"\0")[0].partition(b"\t")[2]
        raise ToolError(
            f"{quote(path)} is not resolved",
            where=str(tree),
            action="edit it, then `git add` it (or `git rm`), then --continue",
            code=Exit.CONFLICT,
        )
    if unstaged := git.run(tree, "diff-files", "--name-only", "-z"):
        raise ToolError(
            f"{quote(unstaged.split(bytes(1))[0])} has changes that are not added",
            where=str(tree),
            action="`git add` them, then --continue",
            code=Exit.CONFLICT,
        )
    try:
        git.run(tree, "merge-base", "--is-ancestor", head, "HEAD")
    except git.GitError as exc:
        raise ToolError(
            "the tree was taken back behind the patches that are through, or to other commits",
            where=str(tree),
            action=f"`git reset --soft {head}` keeps what is in the tree as the resolution, `git reset --hard {head}` "
            "drops the patch; then --continue",
            code=Exit.CONFLICT,
        ) from exc


def _refuse_taken(tree: Path, name: str, loaded: stack.Stack) -> None:
    """Refuse new files that stand where the overlay has one, or has a folder, or needs one."""
    state = TreeState(git.ls_tree(tree, git.text(tree, "write-tree")), lambda _: b"")
    for file in loaded.overlay:
        if reason := state.occupied(file.path):
            raise ToolError(
                f"the resolution takes the place of overlay file {quote(file.path)}: {reason}",
                where=str(tree),
                action=f"take it out (git rm --cached, then move the file away) and --continue; overlay/{name} "
                "is edited there, after the rebase",
                code=Exit.CONFLICT,
            )
