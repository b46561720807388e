# SPDX-License-Identifier: Apache-2.0
"""Where the project, its cache and its results lie, and how odd path names are shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scripts.errors import Exit, ToolError

CACHE_VARIABLE = "VLLM_GAUDI_FRONTIER_CACHE"
SOURCE_VARIABLE = "VLLM_GAUDI_FRONTIER_SOURCE_"

_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_UNESCAPES = {letter: value for value, letter in _ESCAPES.items()}


@dataclass(frozen=True)
class Project:
    """The folders of one checkout of the project."""

    root: Path
    cache: Path
    sources: dict[str, Path]

    @property
    def lock(self) -> Path:
        return self.root / "upstream.lock"

    @property
    def build(self) -> Path:
        return self.root / "build"

    def patches(self, upstream: str) -> Path:
        return self.root / "patches" / upstream

    def overlay(self, upstream: str) -> Path:
        return self.root / "overlay" / upstream

    def tree(self, upstream: str) -> Path:
        return self.build / "trees" / upstream


def default_cache() -> Path:
    """The user's cache folder: the project's variable, then XDG, then ~/.cache."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return _expand(chosen, CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expand(base, "the user's cache folder") / "vllm-gaudi-frontier"


def _expand(path: str, where: str) -> Path:
    """`path` made absolute, a leading ~ resolved. Raises ToolError where the user has no home folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as exc:
        raise ToolError(
            f"`{path}` lies in a home folder that does not exist",
            where=where,
            action=f"set HOME, or give a full path ({CACHE_VARIABLE} for the cache)",
        ) from exc


def open_project(root: Path | None, sources: list[str]) -> Project:
    """The project at `root` (default: the checkout this tool lies in).

    `sources` are NAME=PATH words; VLLM_GAUDI_FRONTIER_SOURCE_<NAME> variables fill in what they leave open.
    """
    found = (root or Path(__file__).parent.parent).absolute()
    chosen: dict[str, Path] = {}
    for word in sources:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ToolError(
                f"`--source {word}` is not NAME=PATH",
                where="command line",
                action="write it as --source vllm-gaudi=/path/to/checkout",
                code=Exit.USAGE,
            )
        chosen[name] = _expand(path, f"--source {word}")
    for variable, path in os.environ.items():
        if variable.startswith(SOURCE_VARIABLE) and path:
            name = variable[len(SOURCE_VARIABLE) :].lower().replace("_", "-")
            chosen.setdefault(name, _expand(path, variable))
    return Project(found, default_cache(), chosen)


def quote(path: bytes) -> str:
    """`path` in git's C style: bare when printable ASCII, else in double quotes with octal escapes."""
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in path):
        return path.decode("ascii")
    out = []
    for byte in path:
        if byte in _ESCAPES:
            out.append("\\" + _ESCAPES[byte])
        elif 32 <= byte < 127:
            out.append(chr(byte))
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def unquote(text: str) -> bytes:
    """Inverse of :func:`quote`. Raises ValueError on a broken escape."""
    if not text.startswith('"'):
        return text.encode("ascii")
    if len(text) < 2 or not text.endswith('"'):
        raise ValueError(f"unterminated quoted path {text!r}")
    body, out, at = text[1:-1], bytearray(), 0
    while at < len(body):
        char = body[at]
        if char != "\\":
            out += char.encode("ascii")
            at += 1
        elif at + 1 < len(body) and body[at + 1] in _UNESCAPES:
            out.append(_UNESCAPES[body[at + 1]])
            at += 2
        else:
            out.append(int(body[at + 1 : at + 4], 8))
            at += 4
    return bytes(out)


def unsafe(path: bytes) -> str | None:
    """Why `path` must not be written in a tree, or None."""
    if not path or path.startswith(b"/"):
        return "is not relative"
    if b"\0" in path:
        return "holds a NUL, at which git would cut it"
    for part in path.split(b"/"):
        if part in (b"", b".", b".."):
            return "leaves the tree or is not normal"
        if part.lower() == b".git":
            return "is inside a .git folder"
    return None


def link_leaves(path: bytes, target: bytes) -> bool:
    """Whether the symbolic link `path` -> `target` points outside the tree it lies in."""
    if target.startswith(b"/"):
        return True
    depth = path.count(b"/")
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in (b"", b"."):
            depth += 1
    return False
