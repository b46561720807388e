# SPDX-License-Identifier: Apache-2.0
"""A source archive as a git tree: refuse what leaves its folder, keep exec bits and links, drop the top folder."""

from __future__ import annotations

import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from scripts import git
from scripts.errors import ToolError
from scripts.paths import link_leaves, quote, unsafe
from scripts.stack import read_overlay


def import_archive(archive: Path, repo: Path) -> str:
    """Load the tar archive into the bare repository `repo`. Returns the tree id.

    Raises:
        ToolError: truncated or damaged archive, member outside the top folder, special file.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            return import_files(repo, _members(tar, archive))
    except (tarfile.TarError, EOFError, zlib.error) as exc:
        raise ToolError(
            f"archive is truncated or damaged: {exc}",
            where=str(archive),
            action="remove it and run `python -m scripts fetch` again",
        ) from exc


def import_folder(folder: Path, repo: Path) -> str:
    """Load an unpacked source folder into `repo`. Returns the tree id."""
    return import_files(repo, ((f.path, f.mode, f.data) for f in read_overlay(folder)))


def _members(tar: tarfile.TarFile, archive: Path) -> Iterator[tuple[bytes, str, bytes]]:
    top: bytes | None = None
    for member in tar:
        name = member.name.encode("utf-8", "surrogateescape")
        if member.isdir() and b"/" not in name.strip(b"/"):
            top = top or name.strip(b"/")
        if reason := unsafe(name.rstrip(b"/")):
            raise _refuse(archive, f"member {quote(name)} {reason}")
        first, _, path = name.partition(b"/")
        top = top or first
        if first != top:
            raise _refuse(archive, f"member {quote(name)} is outside the top folder {quote(top)}")
        if member.isdir():
            continue
        if not path:
            raise _refuse(archive, f"member {quote(name)} lies beside the top folder")
        if member.issym():
            target = member.linkname.encode("utf-8", "surrogateescape")
            if link_leaves(path, target):
                raise _refuse(archive, f"link {quote(name)} points outside the archive, to {quote(target)}")
            yield path, "120000", target
        elif member.isreg() or member.islnk():
            source: IO[bytes] | None = tar.extractfile(member)
            if source is None:
                raise _refuse(archive, f"member {quote(name)} has no content")
            yield path, "100755" if member.mode & 0o100 else "100644", source.read()
        else:
            raise _refuse(archive, f"member {quote(name)} is a special file")


def _refuse(archive: Path, what: str) -> ToolError:
    return ToolError(f"archive refused: {what}", where=str(archive), action="get the archive from its publisher again")


def import_files(repo: Path, files: Iterator[tuple[bytes, str, bytes]]) -> str:
    """Write (path, mode, content) triples as one tree. Returns its id."""
    process = subprocess.Popen(
        git.command(repo, ["fast-import", "--quiet", "--done", "--date-format=raw"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=git.environment(False),
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        with process.stdin as stream:
            stream.write(b"commit refs/import\ncommitter import <import@invalid> 0 +0000\ndata 0\n")
            for path, mode, data in files:
                stream.write(b"M %s inline %s\ndata %d\n" % (mode.encode(), quote(path).encode(), len(data)))
                stream.write(data)
                stream.write(b"\n")
            stream.write(b"\ndone\n")
    except BrokenPipeError:
        pass  # git's own message says more
    except BaseException:
        process.kill()
        raise
    finally:
        complaint = process.stderr.read().decode("utf-8", "replace")
        process.stderr.close()
        process.wait()
    if process.returncode:
        raise git.GitError(["fast-import"], process.returncode, complaint)
    tree = git.text(repo, "rev-parse", "refs/import^{tree}")
    git.run(repo, "update-ref", "-d", "refs/import")
    return tree
