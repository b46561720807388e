# SPDX-License-Identifier: Apache-2.0
"""Rewrite a freshly built wheel so that its bytes depend on its contents alone.

Build back ends copy file times, the caller's umask and the directory order into the archive. `repack` writes the same
members sorted, with one fixed time and git's two file modes, adds the files a distribution has to carry, and signs
the result with a new RECORD (https://packaging.python.org/en/latest/specifications/binary-distribution-format/).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

NATIVE_SUFFIXES = (".so", ".pyd", ".dylib", ".a", ".o")
ZIP_EPOCH = 315532800  # 1980-01-01T00:00:00Z, the earliest time a zip entry can hold
_DEFLATE_LEVEL = 6


class RepackError(ValueError):
    """The archive is not a wheel this project can publish."""


def dist_info(names: list[str]) -> str:
    """Name of the only `*.dist-info` folder among archive members `names`."""
    folders = {PurePosixPath(name).parts[0] for name in names if ".dist-info/" in name}
    if len(folders) != 1:
        raise RepackError(f"expected one .dist-info folder, found {sorted(folders) or 'none'}")
    return folders.pop()


def repack(
    wheel: Path, out_dir: Path, *, epoch: int, extra: Mapping[str, bytes], licences: Mapping[str, bytes]
) -> Path:
    """Write `wheel` into `out_dir` in its canonical form and return the new path.

    `epoch`: time of every entry, seconds since 1970, raised to 1980 where lower (zip's limit).
    `extra`: members to add by archive name. `licences`: files to add below `<dist-info>/licenses/`, each declared as a
    License-File. A wheel without compiled code is tagged `py3-none-any`, whatever the building Python was; one with
    compiled code is refused, since nothing this project builds has any.
    Raises RepackError.
    """
    with zipfile.ZipFile(wheel) as source:
        names = [name for name in source.namelist() if not name.endswith("/")]
        info = dist_info(names)
        members = {name: source.read(name) for name in names}
        modes = {name: source.getinfo(name).external_attr >> 16 for name in names}
    native = sorted(name for name in members if name.endswith(NATIVE_SUFFIXES))
    if native:
        raise RepackError(f"{wheel.name} holds compiled code ({native[0]}); the distribution is pure Python")
    del members[f"{info}/RECORD"]
    clash = sorted(set(extra) & set(members))
    if clash:
        raise RepackError(f"{wheel.name} already has {clash[0]}, which the build generates; remove it from the tree")
    members.update(extra)
    members.update({f"{info}/licenses/{name}": data for name, data in licences.items()})
    members[f"{info}/METADATA"] = _declare_licences(members[f"{info}/METADATA"], sorted(licences))
    members[f"{info}/WHEEL"] = _tag_pure(members[f"{info}/WHEEL"])

    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    partial = target.with_suffix(".whl.partial")
    stamp = time.gmtime(max(epoch, ZIP_EPOCH))[:6]
    # The specification asks for the metadata at the end of the archive, so that a reader finds it in one seek.
    order = sorted(members, key=lambda name: (name.startswith(f"{info}/"), name))
    with zipfile.ZipFile(partial, "w") as archive:
        for name in order:
            _write(archive, name, members[name], stamp, executable=bool(modes.get(name, 0) & 0o100))
        _write(archive, f"{info}/RECORD", _record(order, members, info), stamp, executable=False)
    partial.replace(target)
    return target


def _write(archive: zipfile.ZipFile, name: str, data: bytes, stamp: tuple[int, ...], *, executable: bool) -> None:
    year, month, day, hour, minute, second = stamp
    entry = zipfile.ZipInfo(name, (year, month, day, hour, minute, second))
    entry.create_system = 3  # Unix: the mode bits below count on every building machine
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data, zipfile.ZIP_DEFLATED, _DEFLATE_LEVEL)


def record_hash(data: bytes) -> str:
    """The hash field of a RECORD row."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _record(order: list[str], members: Mapping[str, bytes], info: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerows((name, record_hash(members[name]), len(members[name])) for name in order)
    rows.writerow((f"{info}/RECORD", "", ""))
    return text.getvalue().encode()


def _declare_licences(metadata: bytes, names: list[str]) -> bytes:
    """Add a License-File header for each of `names`, after the header block's last one (or at its end)."""
    head, separator, body = metadata.partition(b"\n\n")
    lines = head.split(b"\n")
    at = max((i for i, line in enumerate(lines) if line.startswith(b"License-File:")), default=len(lines) - 1) + 1
    lines[at:at] = [f"License-File: {name}".encode() for name in names]
    return b"\n".join(lines) + separator + body


def _tag_pure(wheel: bytes) -> bytes:
    kept = [
        line
        for line in wheel.decode().splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:", "Generator:"))
    ]
    # The generator's version is left out: a newer back end that writes the same files gives the same wheel.
    kept += ["Generator: vllm-gaudi-frontier", "Root-Is-Purelib: true", "Tag: py3-none-any"]
    return ("\n".join(kept) + "\n").encode()
