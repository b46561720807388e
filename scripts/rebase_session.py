# SPDX-License-Identifier: Apache-2.0
"""An accepted rebase in progress: build/rebase/<upstream> holds a tree with the patches carried so far.

Patches, series and lock stay as they are until the last patch is through; then all change in one transaction.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from scripts import cache, carrying, exporting, git, lockfile, stack, worktree
from scripts.applying import AUTHOR, Commit, TreeState, apply_patch, overlay_commit
from scripts.console import note
from scripts.errors import Exit, ToolError
from scripts.export import series_text
from scripts.fetching import ensure_base
from scripts.header import to_message
from scripts.lockfile import Lock, Upstream
from scripts.paths import Project, quote
from scripts.rebasing import patched_tree_path
from scripts.stack import Patch, Stack
from scripts.transaction import Transaction
from scripts.writing import write_commits


@dataclass
class Session:
    """What a rebase has to remember.

    `next` is the patch to carry next, `waiting` says that it is in conflict, and `head` is the commit it is to go on.
    `resolved` maps each patch that was resolved by hand to its commit, "" where the resolution was to drop it.
    """

    after: Upstream
    inputs: str
    drop: list[str]
    report: str
    next: int = 0
    waiting: bool = False
    head: str = ""
    resolved: dict[str, str] = field(default_factory=dict)


def folder(project: Project, name: str) -> Path:
    """Folder of the session of one upstream."""
    return project.build / "rebase" / name


def load(project: Project, name: str) -> Session | None:
    """The session under way, None when there is none. Raises ToolError when its record cannot be read."""
    path = folder(project, name) / "session.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Session(**{**values, "after": Upstream(**values["after"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise ToolError(
            f"the record of the rebase of `{name}` under way is damaged",
            where=str(path),
            action=f"take what you need out of {path.parent / 'tree'}, remove {path.parent}, and begin again; "
            "patches and lock are as before",
            code=Exit.REFUSED,
        ) from exc


def save(project: Project, name: str, session: Session) -> None:
    """Record the session in one step."""
    path = folder(project, name) / "session.json"
    path.with_suffix(".new").write_text(json.dumps(asdict(session)), encoding="utf-8")
    path.with_suffix(".new").replace(path)


def discard(project: Project, name: str) -> None:
    """Remove the session; the record goes first, so that a kill leaves nothing to continue."""
    (folder(project, name) / "session.json").unlink(missing_ok=True)
    shutil.rmtree(folder(project, name), ignore_errors=True)


def inputs_of(lock: Lock, loaded: Stack) -> str:
    """What a session was started from: lock and stack must not change under it."""
    return f"{lock.hash} {loaded.digest}"


def start(project: Project, lock: Lock, after: Upstream, loaded: Stack, drop: tuple[str, ...], report: str) -> Session:
    """A new session with the pristine new base in its tree."""
    discard(project, after.name)
    tree = patched_tree_path(project, after.name)
    tree.mkdir(parents=True)
    cached = ensure_base(project, after)
    worktree.write_tree(tree, cached, git.text(cached, "rev-parse", cache.BASE_REF), [], "")
    session = Session(after, inputs_of(lock, loaded), list(drop), report)
    save(project, after.name, session)
    return session


def proceed(project: Project, before: Upstream, loaded: Stack, session: Session) -> None:
    """Carry the remaining patches. Raises ToolError with the next commands at a conflict."""
    tree = patched_tree_path(project, before.name)
    cached = ensure_base(project, before)
    with git.Objects(cached) as objects:
        old = TreeState(git.ls_tree(cached, cache.BASE_REF), objects.read)
        for number, patch in enumerate(loaded.patches):
            if number >= session.next and patch.name not in session.drop:
                with git.Objects(tree) as mine:
                    row = carrying.carry(old, TreeState(git.ls_tree(tree, "HEAD"), mine.read), patch)
                if row.outcome == carrying.CONFLICT:
                    _open_conflict(tree, row, old)
                    session.next, session.waiting, session.head = number, True, git.text(tree, "rev-parse", "HEAD")
                    save(project, before.name, session)
                    raise conflict_error(project, before.name, row)
                if row.outcome != carrying.EMPTY:
                    commit_patch(tree, patch, row.contents, git.text(tree, "rev-parse", "HEAD"))
                session.next = number + 1
                save(project, before.name, session)
            apply_patch(old, patch, str(project.root))


def commit_patch(tree: Path, patch: Patch, changes: carrying.Contents, parent: str) -> None:
    """Make `changes` the commit of `patch` on `parent`, and check it out."""
    author = patch.header.get("Author") or AUTHOR
    commit = Commit(to_message(patch.header, patch.name), author, patch.header.get("Last-Update"), changes)
    write_commits(tree, parent, [commit], worktree.BRANCH)
    git.run(tree, "symbolic-ref", "HEAD", worktree.BRANCH)
    git.run(tree, "read-tree", "--reset", "-u", "HEAD")


def _open_conflict(tree: Path, row: carrying.Carried, old: TreeState) -> None:
    """Put the patch into the tree: merged files with markers and both sides in the index, clean files staged."""
    git.run(tree, "read-tree", "--reset", "-u", "HEAD")
    records: list[bytes] = []
    for path, entry in row.contents.items():
        records += _stage(tree, path, 0, entry)
        _put(tree, path, entry)
    for conflict in row.conflicts:
        before = old.content(conflict.path) if conflict.path in old.entries else None
        records.append(b"0 " + b"0" * 40 + b"\t" + conflict.path)
        for stage, side in ((1, before), (2, conflict.upstream), (3, conflict.patched)):
            if side is not None:
                records += _stage(tree, conflict.path, stage, (conflict.mode, side))
        shown = conflict.merged if conflict.merged is not None else conflict.patched
        _put(tree, conflict.path, None if shown is None else (conflict.mode, shown))
    git.run(tree, "update-index", "-z", "--index-info", stdin=b"".join(r + b"\0" for r in records))


def _stage(tree: Path, path: bytes, stage: int, entry: tuple[str, bytes] | None) -> list[bytes]:
    if entry is None:
        return [b"0 " + b"0" * 40 + b"\t" + path]
    name = git.run(tree, "hash-object", "-w", "--stdin", "--no-filters", stdin=entry[1]).strip()
    return [b"%s %s %d\t%s" % (entry[0].encode(), name, stage, path)]


def _put(tree: Path, path: bytes, entry: tuple[str, bytes] | None) -> None:
    full = os.path.join(os.fsencode(tree), path)
    if os.path.lexists(full):
        os.unlink(full)
    if entry is None:
        return
    os.makedirs(os.path.dirname(full), exist_ok=True)
    if entry[0] == "120000":
        os.symlink(entry[1], full)
        return
    with open(full, "wb") as handle:
        handle.write(entry[1])
    os.chmod(full, 0o755 if entry[0] == "100755" else 0o644)


def conflict_error(project: Project, name: str, row: carrying.Carried) -> ToolError:
    """The stop at a conflict, with the commands that lead on."""
    tree = patched_tree_path(project, name)
    files = "; ".join(f"{quote(c.path)}: {c.why}" for c in row.conflicts)
    return ToolError(
        f"patch `{row.patch.name}` conflicts. {files}",
        where=str(tree),
        action="edit the files there (upstream, before and patch are marked) and `git add` or `git rm` them, or drop "
        f"the patch by `git reset --hard`; then `python -m scripts rebase --upstream {name} --continue`. `--abort` "
        "gives up, nothing has changed",
        code=Exit.CONFLICT,
    )


def finish(project: Project, lock: Lock, before: Upstream, loaded: Stack, session: Session, report: str) -> list[str]:
    """Write patches, series, lock and report in one transaction; returns the names of patches that are gone."""
    tree = patched_tree_path(project, before.name)
    stamp = worktree.read_stamp(tree)
    assert stamp is not None
    old = {patch.name: patch.data for patch in loaded.patches}
    refuse_loose(tree)
    patches = _in_order(exporting.read_patches(tree, stamp.base, old), loaded)
    series_path = project.patches(before.name) / "series"
    series = series_text(stack.read_series_text(project, before.name), [p.name for p in patches]).encode()
    added = exporting.read_overlay(tree, stamp.base)
    loaded = replace(loaded, overlay=tuple(sorted((*loaded.overlay, *added), key=lambda f: f.path)))
    after = _locked(project, session.after, loaded, patches, series)
    with Transaction(project) as change:
        for patch in patches:
            if old[patch.name] != patch.data:
                change.write(project.patches(before.name) / f"{patch.name}.patch", patch.data)
        gone = [name for name in old if name not in {p.name for p in patches}]
        for name in gone:
            change.remove(project.patches(before.name) / f"{name}.patch")
        for file in added:
            change.write(project.overlay(before.name) / os.fsdecode(file.path), file.data, file.mode)
        change.write(series_path, series)
        change.write(project.lock, lockfile.render(lock.with_upstream(after)).encode())
        change.write(project.root / session.report, report.encode())
    discard(project, before.name)
    for file in added:
        note(f"{quote(file.path)} is no file of upstream: it is in overlay/{before.name} now, `git add` it there")
    return gone


def refuse_loose(tree: Path) -> None:
    """Refuse to go on while files in the tree, or worktrees of it, would go with it."""
    loose = git.run(tree, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]
    if loose:
        more = f" and {len(loose) - 5} more" if len(loose) > 5 else ""
        raise ToolError(
            f"files that are in no commit and would be lost: {', '.join(map(quote, loose[:5]))}{more}",
            where=str(tree),
            action="`git add` what belongs to the patch (a file that upstream has not goes to the overlay), move the "
            "others away, then --continue",
            code=Exit.CONFLICT,
        )
    if linked := worktree.linked(tree):
        raise ToolError(
            f"a worktree of this tree would be lost with it: {linked}",
            where=str(tree),
            action=f"`git worktree remove {linked}`, then --continue",
            code=Exit.CONFLICT,
        )


def _in_order(found: list[exporting.Exported], loaded: Stack) -> list[Patch]:
    names = {patch.name for patch in loaded.patches}
    parsed = [stack.parse_patch(p.name, p.data, p.name) for p in found]
    if stranger := next((p.name for p in parsed if p.name not in names), None):
        raise ToolError(
            f"the rebase holds a commit that is no patch of the series: {stranger}",
            where="build/rebase",
            action="a rebase carries patches; add new ones with `export` afterwards",
        )
    return parsed


def _locked(project: Project, after: Upstream, loaded: Stack, patches: Iterable[Patch], series: bytes) -> Upstream:
    """The lock entry of the new state, its patched tree computed from the patches as they will be written."""
    patches = tuple(patches)
    files = stack.file_digests(after.name, series, {f"{p.name}.patch": p.data for p in patches}, loaded.overlay)
    moved = Stack(after.name, patches, loaded.overlay, files)
    cached = ensure_base(project, after)
    with git.Objects(cached) as objects:
        state = TreeState(git.ls_tree(cached, cache.BASE_REF), objects.read)
        commits = [apply_patch(state, patch, "build/rebase") for patch in patches]
        if moved.overlay:
            commits.append(overlay_commit(state, after.name, moved.overlay, "2000-01-01", "overlay"))
    tree = worktree.patched_tree(cached, commits)
    return replace(after, patched_tree=tree, digest=moved.digest, files=files)
