# SPDX-License-Identifier: Apache-2.0
"""Patches, series and overlay out of the commits of a tree. Reading only; `export` writes what this finds.

A commit's changes to files that upstream has are a patch. Files that upstream has not are overlay, whichever commit
touches them: hooks in patches, logic in files of our own.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from scripts import diff, git
from scripts.applying import AUTHOR
from scripts.errors import Exit, ToolError
from scripts.header import Header, from_message, slug
from scripts.paths import quote
from scripts.stack import NAME_RULE, OverlayFile, check_path, leftover, render_patch

_FORMAT = "%H%x00%P%x00%an <%ae>%x00%ad%x00%B"  # with -z: messages cannot hold a NUL


@dataclass(frozen=True)
class Exported:
    """One patch as it goes to disk."""

    name: str
    header: Header
    data: bytes
    commit: str


def commits_between(tree: Path, base: str) -> list[tuple[str, str, str, str]]:
    """(id, author, date, message) of every commit after `base`, oldest first. Merges are refused."""
    log = git.run(tree, "log", "-z", "--reverse", "--date=short", f"--format={_FORMAT}", f"{base}..HEAD")
    found = []
    words = iter(log.decode("utf-8", "replace").split("\0")[:-1])
    for name, parent, author, date, message in zip(words, words, words, words, words, strict=True):
        if " " in parent:
            raise ToolError(
                f"commit {name[:12]} is a merge; a stack is a line of commits",
                where=str(tree),
                action="rebase the tree onto its base and export again",
                code=Exit.REFUSED,
            )
        found.append((name, author, date, message))
    return found


def changes_of(tree: Path, commit: str, upstream_paths: set[bytes]) -> list[diff.FileDiff]:
    """What `commit` does to upstream's files, whatever the user's or the tree's diff settings say."""
    flags = ["--full-index", "-U0", "--inter-hunk-context=0", "--no-renames", "--text", "--no-ext-diff", "--no-color",
             "--no-textconv", "--no-indent-heuristic", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/",
             "--no-relative", "--ignore-submodules=none", "--submodule=short", "-O/dev/null"]  # fmt: skip
    text = git.run(tree, "-c", "diff.suppressBlankEmpty=false", "diff-tree", "-p", "-r", *flags, f"{commit}^", commit)
    try:
        changes = diff.parse(text, from_git=True)
    except diff.DiffError as exc:
        raise ToolError(
            f"commit {commit[:12]} cannot be a patch: {exc}", where=str(tree), action="amend the commit"
        ) from exc
    changes = [c for c in changes if c.path in upstream_paths]
    seen: set[bytes] = set()
    for change in changes:
        if change.path in seen:
            raise ToolError(
                f"commit {commit[:12]} changes the type of {quote(change.path)}: file to link, or back",
                where=str(tree),
                action="amend the commit: a patch keeps the types of upstream's files",
            )
        seen.add(change.path)
    return changes


def read_patches(tree: Path, base: str, old: dict[str, bytes], left: list[str] | None = None) -> list[Exported]:
    """The patches of the commits after `base`.

    `old` maps names to the patch files of today: a patch whose bytes would change gets the commit's date as its
    Last-Update. `left` gets a sentence for each commit that is no patch and whose message is thus kept nowhere. Raises
    ToolError when two commits would write one file, or a message does not fit into a header.
    """
    upstream_paths = set(git.ls_tree(tree, base))
    patches: dict[str, Exported] = {}
    for commit, author, date, message in commits_between(tree, base):
        changes = changes_of(tree, commit, upstream_paths)
        if not changes:
            if left is not None and not message.startswith("Overlay\n\nOverlay: "):
                left.append(
                    f"commit {commit[:12]} changes overlay only, its message is not kept: {message.split(chr(10))[0]}"
                )
            continue
        for change in changes:
            if change.new_mode is not None and change.new_mode != change.old_mode == "160000":
                raise ToolError(
                    f"commit {commit[:12]} changes the submodule {quote(change.path)}",
                    where=str(tree),
                    action="leave submodules alone: their files are not part of this tree",
                )
        try:
            header, name = from_message(message)
        except ValueError as exc:
            raise ToolError(
                f"the message of commit {commit[:12]} has lines that a patch header has no place for: {exc}",
                where=str(tree),
                action="reword it (git rebase -i): known fields once each, longer ones continued with a space, "
                "free text as paragraphs of its own; nothing was written",
                code=Exit.REFUSED,
            ) from exc
        name = name or slug(header.get("Subject"))
        if not NAME_RULE.match(name):
            raise ToolError(
                f"commit {commit[:12]} asks for the patch name {name!r}",
                where=str(tree),
                action="write `Patch-Name: topic` with lower case letters, digits, - _ .",
            )
        if name in patches:
            raise ToolError(
                f"commits {patches[name].commit[:12]} and {commit[:12]} would both write {name}.patch",
                where=str(tree),
                action="squash them (git rebase -i), or give one another subject or Patch-Name",
                code=Exit.REFUSED,
            )
        patches[name] = _patch(name, header, author, date, changes, old.get(name), commit)
    return list(patches.values())


def _patch(
    name: str, header: Header, author: str, date: str, changes: list[diff.FileDiff], old: bytes | None, commit: str
) -> Exported:
    if author != AUTHOR and not header.get("Author") and (old is None or b"\nAuthor: " in old.partition(b"\n\n")[0]):
        header = header.with_field("Author", author)
    for field, value in (("Origin", "vendor"), ("Forwarded", "no"), ("Last-Update", date)):
        if not header.get(field):
            header = header.with_field(field, value)
    data = render_patch(header, changes)
    if old is not None and data != old:
        today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
        header = header.with_field("Last-Update", today)
        data = render_patch(header, changes)
    return Exported(name, header, data, commit)


def read_overlay(tree: Path, base: str) -> list[OverlayFile]:
    """Files of HEAD that upstream has not."""
    known = git.ls_tree(tree, base)
    found = []
    with git.Objects(tree) as objects:
        for path, (mode, name) in sorted(git.ls_tree(tree, "HEAD").items()):
            if path in known:
                continue
            if mode == "160000":
                raise ToolError(
                    f"{quote(path)} is a submodule", where=str(tree), action="add its files, or take it out"
                )
            if leftover(path):
                raise ToolError(
                    f"{quote(path)} has the name of a leftover of Python or an editor, which the overlay leaves out",
                    where=str(tree),
                    action="take it out of its commit, or give it another name, then export",
                    code=Exit.REFUSED,
                )
            data = objects.read(name)
            check_path(path, mode, data, where=str(tree))
            found.append(OverlayFile(path, mode, data))
    return found
