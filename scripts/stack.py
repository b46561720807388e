# SPDX-License-Identifier: Apache-2.0
"""What the project lays over one upstream: the series, its patches, the overlay. Reading only."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts import diff
from scripts.errors import ToolError
from scripts.header import Header
from scripts.header import parse as parse_header
from scripts.paths import Project, link_leaves, quote, unsafe

# Leftovers of Python and editors, never part of an overlay.
_IGNORED_FOLDERS = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
_IGNORED_ENDINGS = (".pyc", ".swp", "~", ".DS_Store")
NAME_RULE = re.compile(r"^[a-z0-9][a-z0-9_.-]*$")


@dataclass(frozen=True)
class Patch:
    """One patch file: name without ending, header, changes, bytes."""

    name: str
    header: Header
    changes: tuple[diff.FileDiff, ...]
    data: bytes


@dataclass(frozen=True)
class OverlayFile:
    """One overlay file at its path in the upstream tree; a link's data is its target."""

    path: bytes
    mode: str
    data: bytes


@dataclass(frozen=True)
class Stack:
    """Everything over one upstream. `digests`: path in the project -> sha256 (and the mode when not 100644)."""

    upstream: str
    patches: tuple[Patch, ...]
    overlay: tuple[OverlayFile, ...]
    digests: dict[str, str]

    @property
    def digest(self) -> str:
        """One sha256 over all of `digests`."""
        return digest_of(self.digests)


def digest_of(files: dict[str, str]) -> str:
    """One sha256 over a listing of files, whatever its order."""
    text = "".join(f"{path}\0{value}\n" for path, value in sorted(files.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def parse_patch(name: str, data: bytes, where: str) -> Patch:
    """Split a patch file into header and changes. Raises ToolError naming the line."""
    if b"\r\n" in data.partition(b"diff --git ")[0]:
        raise ToolError(
            f"patch `{name}` has CRLF line ends in its header",
            where=where,
            action="restore the file as committed (check core.autocrlf and .gitattributes) or run `export`",
        )
    head, separator, body = data.partition(b"\n\ndiff --git ")
    if not separator:
        raise ToolError(
            f"patch `{name}` has no header, blank line and `diff --git`",
            where=where,
            action="see docs/patch-stack.md for the form of a patch",
        )
    try:
        header = parse_header(head.decode("utf-8"))
        changes = diff.parse(b"diff --git " + body, first_line=head.count(b"\n") + 3)
    except ValueError as exc:
        raise ToolError(
            f"patch `{name}` is malformed: {exc}",
            where=where,
            action="correct the line, or make the change in build/trees and run `export`",
        ) from exc
    return Patch(name, header, tuple(changes), data)


def render_patch(header: Header, changes: list[diff.FileDiff]) -> bytes:
    """The bytes of a patch file."""
    return ("\n".join(header.lines()) + "\n\n").encode() + diff.render(changes)


def read_series_text(project: Project, upstream: str) -> str:
    """The text of `patches/<upstream>/series`. Raises ToolError when it is missing, no UTF-8 or has CRLF line ends."""
    path = project.patches(upstream) / "series"
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ToolError(
            f"no series for `{upstream}`", where=str(path), action="restore the file, or create it empty"
        ) from None
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise ToolError(
            f"the series of `{upstream}` is no UTF-8: byte {exc.object[exc.start]:#04x}",
            where=f"{path}:{line}",
            action="restore the file as committed, or correct the line",
        ) from exc
    if "\r\n" in text:
        raise ToolError(
            f"the series of `{upstream}` has CRLF line ends",
            where=str(path),
            action="restore the file as committed (check core.autocrlf and .gitattributes)",
        )
    return text


def read_series(project: Project, upstream: str) -> tuple[str, ...]:
    """Names in the order of `patches/<upstream>/series`; blank lines and # comments are skipped."""
    path = project.patches(upstream) / "series"
    names: list[str] = []
    for number, line in enumerate(read_series_text(project, upstream).split("\n"), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        name = word[: -len(".patch")] if word.endswith(".patch") else ""
        if not NAME_RULE.match(name):
            raise ToolError(
                f"`{word}` is no patch name",
                where=f"{path}:{number}",
                action="write one topic.patch a line: lower case letters, digits, - _ .",
            )
        if name in names:
            raise ToolError(f"`{word}` is listed twice", where=f"{path}:{number}", action="remove one of the lines")
        names.append(name)
    return tuple(names)


def leftover(path: bytes) -> bool:
    """Whether `path` has a name that Python and editors give to leftovers, which an overlay leaves out."""
    *folders, name = os.fsdecode(path).split("/")
    return bool(_IGNORED_FOLDERS.intersection(folders)) or name.endswith(_IGNORED_ENDINGS)


def read_overlay(folder: Path) -> list[OverlayFile]:
    """Files and links under `folder`, ascending by path. Raises ToolError for special files and bad names."""
    found: list[OverlayFile] = []
    root = os.fsencode(folder)
    if os.path.lexists(root) and not os.path.isdir(root):
        raise ToolError("the overlay is no folder", where=str(folder), action="restore the folder, or remove the file")

    def refuse(exc: OSError) -> None:
        raise exc  # os.walk would leave the folder out

    for base, folders, files in os.walk(root, onerror=refuse if os.path.isdir(root) else None):
        kept = [d for d in folders if os.fsdecode(d) not in _IGNORED_FOLDERS]
        links = [d for d in kept if os.path.islink(os.path.join(base, d))]
        folders[:] = [d for d in kept if d not in links]
        for name in files + links:
            full = os.path.join(base, name)
            path = os.path.relpath(full, root)
            if leftover(path):
                continue
            info = os.lstat(full)
            if stat.S_ISLNK(info.st_mode):
                mode, data = "120000", os.readlink(full)
            elif stat.S_ISREG(info.st_mode):
                mode = "100755" if info.st_mode & stat.S_IXUSR else "100644"
                data = Path(os.fsdecode(full)).read_bytes()
            else:
                raise ToolError("not a file or link", where=os.fsdecode(full), action="remove it from the overlay")
            check_path(path, mode, data, where=os.fsdecode(full))
            found.append(OverlayFile(path, mode, data))
    return sorted(found, key=lambda f: f.path)


def check_path(path: bytes, mode: str | None, data: bytes, *, where: str) -> None:
    """Refuse a path or link that would reach outside the tree."""
    if reason := unsafe(path):
        raise ToolError(f"path {quote(path)} {reason}", where=where, action="use a path inside the upstream tree")
    if mode == "120000" and link_leaves(path, data):
        raise ToolError(
            f"link {quote(path)} points outside the tree, to {quote(data)}",
            where=where,
            action="let the link point to a path inside the tree",
        )


def load(project: Project, upstream: str) -> Stack:
    """Read and parse the stack of one upstream. Raises ToolError for the first thing that cannot be used."""
    patches = []
    for name in read_series(project, upstream):
        path = project.patches(upstream) / f"{name}.patch"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ToolError(
                f"patch `{name}` is in the series but not on disk",
                where=str(path),
                action="restore the file or remove its line from the series",
            ) from None
        patches.append(parse_patch(name, data, str(path)))
    overlay = read_overlay(project.overlay(upstream))
    return Stack(upstream, tuple(patches), tuple(overlay), digests(project, upstream, overlay))


def digests(project: Project, upstream: str, overlay: list[OverlayFile] | None = None) -> dict[str, str]:
    """sha256 of series, patch files and overlay by project path; a mode other than 100644 is added to it."""
    folder = project.patches(upstream)
    files = sorted(p for p in folder.glob("*") if p.is_file() and (p.name == "series" or p.suffix == ".patch"))
    found = {f"patches/{upstream}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return {
        **found,
        **overlay_digests(upstream, read_overlay(project.overlay(upstream)) if overlay is None else overlay),
    }


def file_digests(
    upstream: str, series: bytes, patches: dict[str, bytes], overlay: Iterable[OverlayFile]
) -> dict[str, str]:
    """As :func:`digests`, for files that are not on disk yet; `patches` maps file names to contents."""
    found = {f"patches/{upstream}/{name}": hashlib.sha256(data).hexdigest() for name, data in patches.items()}
    found[f"patches/{upstream}/series"] = hashlib.sha256(series).hexdigest()
    return {**found, **overlay_digests(upstream, overlay)}


def overlay_digests(upstream: str, overlay: Iterable[OverlayFile]) -> dict[str, str]:
    """sha256 of overlay files by project path."""
    found = {}
    for file in overlay:
        mode = "" if file.mode == "100644" else f" {file.mode}"
        found[f"overlay/{upstream}/{quote(file.path)}"] = hashlib.sha256(file.data).hexdigest() + mode
    return found
