# SPDX-License-Identifier: Apache-2.0
"""`upstream.lock`: which upstreams, and what base plus patches plus overlay must come to."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts import stack
from scripts.errors import Exit, ToolError
from scripts.paths import SOURCE_VARIABLE, Project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
KINDS = ("git", "sdist")
# What reaches the command lines of git and pip, and folder names: nothing that could be read as an option, a second
# requirement or a path that climbs.
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SHAPES = {
    "version": re.compile(r"[0-9][0-9A-Za-z.!_]*"),
    "ref": re.compile(r"(?:[0-9A-Za-z][0-9A-Za-z._/+-]*)?"),
    "git": re.compile(r"[^-\s\x00-\x1f][^\s\x00-\x1f]*"),
    "sdist": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9A-Za-z.!_]*"),
}
_TOP_KEYS = ("format", "lock-hash", "upstream")
_KEYS = ("kind", "address", "ref", "version", "base-tree", "patched-tree", "digest", "files")
_PINS = {"git": "commit", "sdist": "sha256"}
_HEX = {40: re.compile(r"^[0-9a-f]{40}$"), 64: re.compile(r"^[0-9a-f]{64}$")}


@dataclass(frozen=True)
class Upstream:
    """One upstream of the lock.

    `pin` is the 40-digit commit of a git source or the sha256 of an sdist. `base_tree` and `patched_tree` are git tree
    ids, empty while not yet known. `files` maps project paths of series, patches and overlay to their sha256.
    """

    name: str
    kind: str
    address: str
    version: str
    pin: str
    ref: str = ""
    base_tree: str = ""
    patched_tree: str = ""
    digest: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def identity(self) -> dict[str, str]:
        """Everything the lock hash covers."""
        keys = ("name", "kind", "address", "version", "pin", "ref", "base_tree", "patched_tree", "digest")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Lock:
    """The whole lock. `recorded_hash` is what the file says, :attr:`hash` what its values come to."""

    path: Path
    upstreams: dict[str, Upstream]
    recorded_hash: str

    @property
    def hash(self) -> str:
        """sha256 over all upstreams in canonical JSON: the *lock hash* that every artefact carries."""
        values = [self.upstreams[name].identity() for name in sorted(self.upstreams)]
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def get(self, name: str) -> Upstream:
        """The upstream `name`, or a ToolError listing the known ones."""
        if name not in self.upstreams:
            raise ToolError(
                f"no upstream `{name}`",
                where=str(self.path),
                action=f"use one of: {', '.join(self.upstreams)}",
            )
        return self.upstreams[name]

    def with_upstream(self, upstream: Upstream) -> Lock:
        """A copy in which `upstream` takes the place of its namesake."""
        return replace(self, upstreams={**self.upstreams, upstream.name: upstream})


def load(project: Project) -> Lock:
    """Read the lock. Raises ToolError naming the key when a value is missing or malformed."""
    path = project.lock
    try:
        plain: dict[str, Any] = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ToolError("no lock", where=str(path), action="restore upstream.lock from version control") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ToolError(
            f"the lock is no TOML: {exc}", where=str(path), action="restore it from version control"
        ) from exc
    if type(plain.get("format")) is not int or plain["format"] != FORMAT:
        raise _bad(path, "format", f"must be {FORMAT}")
    _refuse_unknown(path, "", plain, _TOP_KEYS)
    tables = plain.get("upstream")
    if not isinstance(tables, dict) or not tables:
        raise _bad(path, "upstream", "must hold at least one table")
    upstreams = {name: _upstream(path, name, table) for name, table in tables.items()}
    if unknown := sorted(set(project.sources) - set(upstreams)):
        raise ToolError(
            f"a source is given for `{unknown[0]}`, which is no upstream",
            where=f"--source or {SOURCE_VARIABLE}*",
            action=f"use one of: {', '.join(upstreams)}",
            code=Exit.USAGE,
        )
    return Lock(path, upstreams, _string(path, plain, "lock-hash", "lock-hash"))


def check_hash(lock: Lock) -> None:
    """Raise ToolError when the file's values do not come to the hash it states, or a listing not to its digest."""
    if lock.recorded_hash != lock.hash:
        raise ToolError(
            f"the lock was changed by hand: it states lock hash {lock.recorded_hash[:16]}, its values come to "
            f"{lock.hash[:16]}",
            where=str(lock.path),
            action="restore it from version control, or rewrite it with `python -m scripts lock`",
        )
    for name, upstream in lock.upstreams.items():
        if (listed := stack.digest_of(upstream.files)) != upstream.digest:
            raise ToolError(
                f"the lock was changed by hand: the files listed for `{name}` come to digest {listed[:16]}, it states "
                f"{upstream.digest[:16]}",
                where=str(lock.path),
                action="restore it from version control, or rewrite it with `python -m scripts lock`",
            )


def _bad(path: Path, key: str, why: str) -> ToolError:
    return ToolError(f"`{key}` in the lock {why}", where=str(path), action="restore it from version control")


def _refuse_unknown(path: Path, prefix: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise ToolError for a key that nothing reads: the lock hash covers values only, so it would go unnoticed."""
    if unknown := [key for key in table if key not in known]:
        raise ToolError(
            f"the lock holds {prefix + unknown[0]!r}, which is no key of it",
            where=str(path),
            action=f"remove it, or correct it to one of {', '.join(known)}; text for people goes in a # comment",
        )


def _string(path: Path, table: dict[str, Any], key: str, shown: str, length: int = 0) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _bad(path, shown, "must be a string")
    if length and not _HEX[length].fullmatch(value):
        raise _bad(path, shown, f"must be {length} hex digits, is {value[:80]!r}")
    return value


def _upstream(path: Path, name: str, table: Any) -> Upstream:
    if not isinstance(table, dict):
        raise _bad(path, f"upstream.{name}", "must be a table")

    def value(key: str, length: int = 0) -> str:
        return _string(path, table, key, f"upstream.{name}.{key}", length if table.get(key) else 0)

    kind = value("kind")
    if kind not in KINDS:
        raise _bad(path, f"upstream.{name}.kind", f"must be one of {', '.join(KINDS)}")
    key, length = _PINS[kind], 40 if kind == "git" else 64
    _refuse_unknown(path, f"upstream.{name}.", table, (*_KEYS, key))
    pin = _string(path, table, key, f"upstream.{name}.{key}", length)
    if not _NAME.fullmatch(name):
        raise _bad(path, f"upstream.{name!r}", "must be lower case words joined by -")
    for needed, shape in (("address", kind), ("version", "version"), ("ref", "ref")):
        if not _SHAPES[shape].fullmatch(value(needed)):
            raise _bad(path, f"upstream.{name}.{needed}", f"is missing or malformed: {value(needed)[:80]!r}")
    if "::" in value("address").partition("/")[0]:
        raise _bad(path, f"upstream.{name}.address", "names a git remote helper, which would run a command")
    files = table.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise _bad(path, f"upstream.{name}.files", "must map paths to sha256")
    return Upstream(
        name,
        kind,
        value("address"),
        value("version"),
        pin,
        value("ref"),
        value("base-tree", 40),
        value("patched-tree", 40),
        value("digest", 64),
        dict(files),
    )


def render(lock: Lock) -> str:
    """The text of the file at `lock.path` with the values of `lock` in it, comments kept."""
    import tomlkit  # keeps comments, but takes ten times as long to read; only what rewrites the lock pays for it
    from tomlkit.items import Table

    document = tomlkit.parse(lock.path.read_text(encoding="utf-8"))
    document["lock-hash"] = lock.hash
    tables: Any = document["upstream"]
    for name, upstream in lock.upstreams.items():
        table: Table = tables[name]
        values = {
            "address": upstream.address,
            "ref": upstream.ref,
            "version": upstream.version,
            _PINS[upstream.kind]: upstream.pin,
            "base-tree": upstream.base_tree,
            "patched-tree": upstream.patched_tree,
            "digest": upstream.digest,
        }
        for key, value in values.items():
            if table.get(key, "") != value:
                table[key] = value
        if dict(table.get("files", {})) != upstream.files or list(table.get("files", {})) != sorted(upstream.files):
            listing = tomlkit.table()
            for path in sorted(upstream.files):
                listing[path] = upstream.files[path]
            listing.add(tomlkit.nl())
            table["files"] = listing
    return tomlkit.dumps(document).rstrip("\n") + "\n"
