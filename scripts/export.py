# SPDX-License-Identifier: Apache-2.0
"""export: write patches, series and overlay back from the commits in build/trees/<upstream>."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from scripts import exporting, git, lockfile, stack, worktree
from scripts.console import data, note
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.lockfile import Upstream
from scripts.locking import exclusive
from scripts.paths import Project, quote
from scripts.transaction import Transaction
from scripts.writing import write_commits


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("upstream", nargs="*", help="default: every upstream whose tree is built")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the files written, one a line, as paths in the project."""
    lock = lockfile.load(project)
    names = args.upstream or [name for name in lock.upstreams if project.tree(name).exists()]
    if not names:
        raise ToolError(
            "no tree is built", where=str(project.build / "trees"), action="run `python -m scripts trees` first"
        )
    with exclusive(project.build / "trees.lock"):
        plans = [plan(project, lock.get(name)) for name in names]
        with Transaction(project) as change:
            for made in plans:
                for path, entry in made.steps.items():
                    change.remove(path) if entry is None else change.write(path, *entry)
        for made in plans:
            settle(project, made)
            for path in made.steps:
                data(quote(os.fsencode(os.path.relpath(path, project.root))))
    return Exit.OK


@dataclass(frozen=True)
class Plan:
    """What an export of one tree does. `steps`: path -> (content, mode), or None where it goes."""

    upstream: str
    steps: dict[Path, tuple[bytes, str] | None]
    stamp: worktree.Stamp
    notes: list[str]


def plan(project: Project, upstream: Upstream) -> Plan:
    """What the commits of one tree come to; nothing of the project is changed.

    Raises:
        ToolError: the tree is dirty, mid-operation, unpatched, two commits would write one file, a message does not
            fit into a header, or files and tree both moved on.
    """
    tree = project.tree(upstream.name)
    stamp = worktree.read_stamp(tree)
    if stamp is None:
        raise ToolError(
            f"`{upstream.name}` has no tree built by this tool, or its record is damaged",
            where=str(tree),
            action=worktree.put_aside(project, upstream.name)
            if tree.exists()
            else "run `python -m scripts trees` first",
            code=Exit.REFUSED,
        )
    refuse_unfinished(project, upstream.name)
    folder = project.patches(upstream.name)
    old = read_listed(project, upstream.name)
    notes: list[str] = []
    patches = exporting.read_patches(tree, stamp.base, old, notes)
    if old and not patches:
        raise ToolError(
            f"the tree of `{upstream.name}` has no patch on top of its base: export would delete {len(old)} patches",
            where=str(tree),
            action="rebuild it with `trees --force`; to remove a patch, take its line out of the series",
            code=Exit.REFUSED,
        )
    overlay = exporting.read_overlay(tree, stamp.base)
    present = stack.read_overlay(project.overlay(upstream.name))
    if present and not overlay:
        raise ToolError(
            f"the tree of `{upstream.name}` has no overlay: export would delete {len(present)} files",
            where=str(tree),
            action="rebuild it with `trees --force`; to remove overlay files, remove them from overlay/",
            code=Exit.REFUSED,
        )
    before = stack.read_series_text(project, upstream.name)
    series = series_text(before, [p.name for p in patches])
    result = _stack_of(upstream.name, patches, series, overlay)
    on_disk = stack.digests(project, upstream.name)
    if on_disk != result.digests:
        refuse_outside_edits(project, upstream, stamp, tree)
    head, content = _canonical(project, upstream, stamp, result)
    steps: dict[Path, tuple[bytes, str] | None] = {}
    for patch in patches:
        if old.pop(patch.name, None) != patch.data:
            steps[folder / f"{patch.name}.patch"] = (patch.data, "100644")
    for name in old:
        steps[folder / f"{name}.patch"] = None
    if series != before:
        steps[folder / "series"] = (series.encode(), "100644")
    root = project.overlay(upstream.name)
    known = {f.path: f for f in present}
    for file in overlay:
        if known.pop(file.path, None) != file:
            steps[root / os.fsdecode(file.path)] = (file.data, file.mode)
    for path in known:
        steps[root / os.fsdecode(path)] = None
    notes.append(f"{upstream.name}: {len(patches)} patches, {len(overlay)} overlay files, {len(steps)} files changed")
    new = worktree.Stamp(worktree.inputs_of(stamp.base, result), stamp.base, head, content)
    return Plan(upstream.name, steps, new, notes)


def settle(project: Project, made: Plan) -> None:
    """Take the branch of the tree to the commits that the written files come to."""
    tree = project.tree(made.upstream)
    git.run(tree, "update-ref", "-m", "export", git.text(tree, "symbolic-ref", "--quiet", "HEAD"), made.stamp.head)
    git.run(tree, "update-ref", "-d", "refs/frontier/new")
    worktree.write_stamp(tree, made.stamp)
    for line in made.notes:
        note(line)


def read_listed(project: Project, upstream: str) -> dict[str, bytes]:
    """The patch files of the series by name. Raises ToolError for patch files beside it, which nothing accounts for."""
    folder = project.patches(upstream)
    found = {path.stem: path for path in sorted(folder.glob("*.patch"))}
    if strangers := sorted(set(found) - set(stack.read_series(project, upstream))):
        raise ToolError(
            f"the series does not list {', '.join(f'{name}.patch' for name in strangers)}",
            where=str(folder),
            action="list each in the series, or move it out of that folder; nothing was written",
            code=Exit.REFUSED,
        )
    return {name: path.read_bytes() for name, path in found.items()}


def _stack_of(
    upstream: str, patches: list[exporting.Exported], series: str, overlay: list[stack.OverlayFile]
) -> stack.Stack:
    """The stack as it will lie on disk."""
    parsed = tuple(stack.parse_patch(p.name, p.data, p.name) for p in patches)
    files = {f"{p.name}.patch": p.data for p in patches}
    digests = stack.file_digests(upstream, series.encode(), files, overlay)
    return stack.Stack(upstream, parsed, tuple(overlay), digests)


def _canonical(project: Project, upstream: Upstream, stamp: worktree.Stamp, result: stack.Stack) -> tuple[str, str]:
    """Commit and tree that `result` comes to, written beside the branch; proof that the files give the tree back."""
    tree = project.tree(upstream.name)
    commits = worktree.compute(ensure_base(project, upstream), result, str(project.root))
    head, content = write_commits(tree, stamp.base, commits, "refs/frontier/new")
    if content != git.text(tree, "rev-parse", "HEAD^{tree}"):
        raise ToolError(
            f"the patches made from the tree of `{upstream.name}` would not come to that tree again",
            where=str(tree),
            action="nothing was written; this is a defect of the tool, keep the tree and report it",
        )
    return head, content


def refuse_unfinished(project: Project, upstream: str) -> None:
    """Refuse a tree that is mid-operation, off its branch or damaged, or has uncommitted changes."""
    tree = project.tree(upstream)
    if running := worktree.operation_running(tree):
        ends = "git bisect reset" if running == "bisect" else f"git {running.split()[0]} --continue / --abort"
        raise ToolError(
            f"a {running} is under way in the tree",
            where=str(tree),
            action=f"finish or abort it ({ends}), then export",
            code=Exit.REFUSED,
        )
    try:
        git.run(tree, "symbolic-ref", "--quiet", "HEAD")
    except git.GitError as exc:
        if exc.code != 1:  # 1 is a HEAD that is whole and on no branch
            raise damaged(project, upstream, exc) from exc
        raise ToolError(
            "the tree is on no branch",
            where=str(tree),
            action="go back with `git switch main`, or take the branch to these commits with `git switch -C main`, "
            "then export",
            code=Exit.REFUSED,
        ) from exc
    try:
        git.run(tree, "rev-parse", "--verify", "--quiet", "HEAD^{tree}")
        status = git.run(tree, "status", "--porcelain", "--untracked-files=normal", "-z").split(b"\0")[0]
    except git.GitError as exc:
        raise damaged(project, upstream, exc) from exc
    if status:
        raise ToolError(
            f"uncommitted changes in the tree, the first is {status[3:].decode('utf-8', 'replace')!r}",
            where=str(tree),
            action="commit or stash them, then export",
            code=Exit.REFUSED,
        )


def damaged(project: Project, upstream: str, exc: git.GitError) -> ToolError:
    """The error for a tree whose repository git cannot read."""
    reason = next((line for line in exc.stderr.splitlines() if line.strip()), "no commit can be read")
    return ToolError(
        f"git cannot read the tree of `{upstream}`: {reason}",
        where=str(project.tree(upstream)),
        action=worktree.put_aside(project, upstream),
        code=Exit.REFUSED,
    )


def refuse_outside_edits(project: Project, upstream: Upstream, stamp: worktree.Stamp, tree: Path) -> None:
    """Refuse when both the tree and the files in the project moved on since the tree was built."""
    now = worktree.inputs_of(stamp.base, stack.load(project, upstream.name))
    if now == stamp.inputs:
        return
    if git.text(tree, "rev-parse", "HEAD") == stamp.head:
        action = "run `python -m scripts trees`: the tree has no new commits, the files are newer"
    else:
        action = "set the edited files aside (git stash), run `export`, then merge them"
    raise ToolError(
        f"patches or overlay of `{upstream.name}` were edited after its tree was built; export would overwrite that",
        where=str(tree),
        action=action,
        code=Exit.REFUSED,
    )


def series_text(old: str, names: list[str]) -> str:
    """The series with `names` in order; comments and blank lines stay with the line that follows them."""
    above: dict[str, list[str]] = {}
    held: list[str] = []
    notes: dict[str, str] = {}
    for line in old.split("\n")[:-1] if old.endswith("\n") else old.split("\n"):
        word = line.partition("#")[0].strip()
        if word:
            name = word.removesuffix(".patch")
            above[name], held, notes[name] = held, [], line
        elif line or held or old.strip():
            held.append(line)
    out: list[str] = []
    for name in names:
        out += [*above.get(name, []), notes.get(name, f"{name}.patch")]
    out += held
    return "\n".join(out) + "\n" if out else ""
