# SPDX-License-Identifier: Apache-2.0
"""`build/trees/<upstream>`: the patched tree as a git repository, swapped in whole, never half-built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts import disk, git
from scripts.applying import AUTHOR, Commit, TreeState, apply_stack
from scripts.cache import BASE_REF
from scripts.errors import Exit, ToolError
from scripts.lockfile import Upstream
from scripts.paths import Project, quote
from scripts.stack import Stack
from scripts.swap import recover, swap_in
from scripts.writing import write_commits

BRANCH = "refs/heads/main"
_STAMP = "frontier.json"
_ID = re.compile(r"[0-9a-f]{40}")
# Above every .gitattributes of upstream: files are bytes, checked out and committed as they are.
_ATTRIBUTES = "* -text -ident -filter !working-tree-encoding !eol\n"


@dataclass(frozen=True)
class Stamp:
    """What a tree was built from (`inputs`), and the commits that came out of it."""

    inputs: str
    base: str
    head: str
    tree: str


def inputs_of(base: str, stack: Stack) -> str:
    """Digest of everything a patched tree depends on."""
    return hashlib.sha256(f"{base}\n{stack.digest}\n".encode()).hexdigest()


def compute(cached: Path, stack: Stack, root: str) -> list[Commit]:
    """The commits of `stack` over the cached base. Nothing is written."""
    with git.Objects(cached) as objects:
        return apply_stack(TreeState(git.ls_tree(cached, BASE_REF), objects.read), stack, root)


def patched_tree(cached: Path, commits: list[Commit]) -> str:
    """Tree id of `commits` over the cached base, found in a scratch repository."""
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        repo = scratch_repository(Path(scratch), cached)
        base = git.text(cached, "rev-parse", BASE_REF)
        return write_commits(repo, base, commits, BRANCH)[1]


def scratch_repository(folder: Path, cached: Path) -> Path:
    """A bare repository in `folder` that borrows the objects of the cached base."""
    git.init_bare(folder)
    (folder / "objects" / "info").mkdir(exist_ok=True)
    # git takes a name in quotes for a quoted one, which it must be when it is no plain text.
    named = quote(os.fsencode(cached / "objects"))
    (folder / "objects" / "info" / "alternates").write_text(f"{named}\n", encoding="ascii")
    return folder


def read_stamp(tree: Path) -> Stamp | None:
    """The stamp of a built tree, None when there is no whole one."""
    try:
        values = json.loads((tree / ".git" / _STAMP).read_text(encoding="utf-8"))
        stamp = Stamp(**values)
        return stamp if all(map(_ID.fullmatch, (stamp.base, stamp.head, stamp.tree))) else None
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(tree: Path, stamp: Stamp) -> None:
    """Record what a tree was built from."""
    path = tree / ".git" / _STAMP
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(stamp.__dict__, sort_keys=True), encoding="utf-8")
    scratch.replace(path)


def operation_running(tree: Path) -> str | None:
    """The git operation a tree is in the middle of."""
    inside = {
        "rebase-merge": "rebase",
        "rebase-apply": "rebase or am",
        "MERGE_HEAD": "merge",
        "CHERRY_PICK_HEAD": "cherry-pick",
        "REVERT_HEAD": "revert",
        "BISECT_LOG": "bisect",
    }
    if found := next((what for name, what in inside.items() if (tree / ".git" / name).exists()), None):
        return found
    # Between two commits of several: the one that stopped is committed, the others still wait here.
    try:
        todo = (tree / ".git" / "sequencer" / "todo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "cherry-pick" if (tree / ".git" / "sequencer").exists() else None
    return "revert" if todo.startswith("revert ") else "cherry-pick"


def linked(tree: Path) -> str | None:
    """A folder that `git worktree add` linked to `tree`: its index and HEAD lie inside the tree's repository."""
    for record in sorted((tree / ".git" / "worktrees").glob("*/gitdir")):
        place = Path(record.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n"))
        if os.path.lexists(record.parent / place) or (record.parent / "locked").exists():
            return str((record.parent / place).parent)
    return None


def unexported(tree: Path, stamp: Stamp | None) -> str | None:
    """What work a rebuild of `tree` would lose, or None."""
    if stamp is None:
        return "it was not built by this tool, or its record is damaged"
    if running := operation_running(tree):
        return f"a {running} is under way"
    if place := linked(tree):
        return f"the linked worktree {place}"
    try:
        words = ("status", "--porcelain=v2", "--branch", "--no-renames", "--untracked-files=normal", "-z")
        # Files as old as the index, all of a fresh tree, are compared by content; git may note that they are clean.
        status = git.run(tree, *words, env={"GIT_OPTIONAL_LOCKS": "1"}).split(b"\0")
        beside = elsewhere(tree, stamp.head)
    except git.GitError as exc:
        return f"git cannot read it ({exc.stderr})"
    changed = next((record for record in status if record[:1] in b"12u?" and record), None)
    if changed is not None:
        path = changed.split(b" ", 1 if changed[:1] == b"?" else 10 if changed[:1] == b"u" else 8)[-1]
        return f"uncommitted changes, the first is {path.decode('utf-8', 'replace')!r}"
    if hidden := hidden_change(tree):
        return f"a change to {quote(hidden)}, which git was told not to look at (update-index)"
    if b"# branch.oid " + stamp.head.encode() not in status:
        return "commits that were not exported"
    return beside


def unreadable(tree: Path) -> bool:
    """Whether git finds no commit at the head of `tree`, or no whole index."""
    try:
        git.run(tree, "rev-parse", "--verify", "--quiet", "HEAD^{tree}")
        git.run(tree, "status", "--porcelain", "--untracked-files=no")
    except git.GitError:
        return True
    return False


def put_aside(project: Project, upstream: str) -> str:
    """The way on with a tree that cannot be read any more, without losing what is in it."""
    tree = project.tree(upstream)
    aside = tree.with_name(f"{upstream}.aside")
    return (
        f"`mv {tree} {aside}`, run `python -m scripts trees`, and bring what you need of it to the new tree: "
        f"commits by `git fetch {aside} main` and `git cherry-pick`, or the files themselves; or discard all of it "
        "with `trees --force`"
    )


def hidden_change(tree: Path) -> bytes | None:
    """A changed file that is marked assume-unchanged or skip-worktree, so that `git status` leaves it out."""
    marked = [r for r in git.run(tree, "ls-files", "-v", "-z").split(b"\0") if r[:1].islower() or r[:1] == b"S"]
    if not marked:
        return None
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        env = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
        git.run(tree, "read-tree", "HEAD", env=env)
        fresh = git.run(tree, "status", "--porcelain", "--no-renames", "--untracked-files=no", "-z", env=env)
    changed = {record[3:] for record in fresh.split(b"\0")}
    return next((record[2:] for record in marked if record[2:] in changed), None)


def elsewhere(tree: Path, head: str) -> str | None:
    """Commits that only a stash, another branch or a tag of `tree` holds: a rebuild starts without them."""
    lost = git.text(tree, "rev-list", "--max-count=1", "--exclude=refs/frontier/*", "--all", "--not", head)
    if not lost:
        return None
    refs = git.text(tree, "for-each-ref", "--format=%(refname)", "--contains", lost).split("\n")
    found = [ref for ref in refs if ref and not ref.startswith("refs/frontier/")] or ["a detached HEAD"]
    return "a stash" if "refs/stash" in found else f"commits that only {found[0]} holds"


def build(
    project: Project, upstream: Upstream, stack: Stack, cached: Path, *, force: bool = False
) -> tuple[Stamp, bool]:
    """Bring `build/trees/<upstream>` to base + patches + overlay. Returns its stamp and whether it was rebuilt.

    Raises:
        ToolError: a patch or overlay file does not fit (the old tree stays), or the old tree holds work that was not
            exported (unless `force`).
    """
    final = project.tree(upstream.name)
    recover(final)
    base = git.text(cached, "rev-parse", BASE_REF)
    wanted = inputs_of(base, stack)
    if os.path.lexists(final):
        stamp = read_stamp(final)
        lost = unexported(final, stamp)
        if lost is None and stamp is not None and stamp.inputs == wanted:
            return stamp, False
        if lost is not None and not force:
            raise ToolError(
                f"the tree of `{upstream.name}` holds work that a rebuild would lose: {lost}",
                where=str(final),
                action=_way_out(project, upstream, final, stamp),
                code=Exit.REFUSED,
            )
    commits = compute(cached, stack, str(project.root))
    with disk.written("the tree", final, "free space there; what was in its place is unharmed"):
        final.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".new-{final.name}-", dir=final.parent))
        try:
            stamp = write_tree(scratch, cached, base, commits, wanted)
            scratch.chmod(0o755)
            swap_in(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return stamp, True


def _way_out(project: Project, upstream: Upstream, tree: Path, stamp: Stamp | None) -> str:
    """What to do about work in a tree that a rebuild would lose."""
    if stamp is None or unreadable(tree):
        return put_aside(project, upstream.name)
    if place := linked(tree):
        return (
            f"bring what it holds to the branch and `git -C {tree} worktree remove {place}`, or discard it with "
            "`trees --force`"
        )
    return "bring it to the branch, commit it and run `python -m scripts export`, or discard it with `trees --force`"


def write_tree(folder: Path, cached: Path, base: str, commits: list[Commit], inputs: str) -> Stamp:
    """A fresh repository in `folder` with the base, `commits` on top, and the last checked out."""
    git.run(None, "init", "--quiet", "--template=", "--initial-branch=main", str(folder))
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    name, _, address = AUTHOR.partition(" <")
    # Commits made here are the distribution's unless their author says otherwise; no one's own address slips in.
    git.run(folder, "config", "user.name", name)
    git.run(folder, "config", "user.email", address.rstrip(">"))
    copy_objects(cached, folder / ".git")
    git.run(folder, "update-ref", "refs/frontier/base", base)
    head, tree = write_commits(folder, base, commits, BRANCH)
    git.run(folder, "read-tree", "--reset", "-u", "HEAD")
    stamp = Stamp(inputs, base, head, tree)
    write_stamp(folder, stamp)
    return stamp


def copy_objects(cached: Path, git_dir: Path) -> None:
    """Copy the packs and loose objects of the cached base (a copy: damage to one side must not reach the other)."""
    for source in (cached / "objects").rglob("*"):
        if source.is_file() and source.parent.name != "info":
            target = git_dir / "objects" / source.relative_to(cached / "objects")
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    shallow = cached / "shallow"
    if shallow.is_file():
        shutil.copyfile(shallow, git_dir / "shallow")
