# SPDX-License-Identifier: Apache-2.0
"""P17 on small wheels: the canonical form depends on contents alone. Each check is seen failing on a weaker repack."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import wheel_repack
from scripts.wheel_repack import RepackError, repack

INFO = "demo-1.0.dist-info"
FILES = {
    "demo/__init__.py": b"x = 1\n",
    "demo/run.sh": b"#!/bin/sh\n",
    f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\nLicense-File: LICENSE\n\nAbout it.\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
    f"{INFO}/licenses/LICENSE": b"licence\n",
    f"{INFO}/RECORD": b"stale\n",
}
Repack = Callable[..., Path]


def raw_wheel(folder: Path, *, year: int, umask: int, reverse: bool, files: dict[str, bytes] = FILES) -> Path:
    """A wheel as a back end on another day, under another umask, with another directory order would write it."""
    folder.mkdir()
    path = folder / "demo-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files, reverse=reverse):
            entry = zipfile.ZipInfo(name, (year, 5, 6, 7, 8, 10))
            mode = 0o777 if name.endswith(".sh") else 0o666
            entry.external_attr = (0o100000 | mode & ~umask) << 16
            archive.writestr(entry, files[name])
    return path


def two_builds(tmp_path: Path, tool: Repack) -> tuple[Path, Path]:
    one = raw_wheel(tmp_path / "a", year=2021, umask=0o022, reverse=False)
    two = raw_wheel(tmp_path / "b-with-a-longer-name", year=2031, umask=0o077, reverse=True)
    assert one.read_bytes() != two.read_bytes(), "the raw wheels must differ, or this test shows nothing"
    options = {"epoch": 1_700_000_000, "extra": {"demo/distribution.json": b"{}\n"}, "licences": {"NOTICE": b"n\n"}}
    return tuple(tool(raw, tmp_path / f"out{n}", **options) for n, raw in enumerate((one, two)))  # type: ignore[return-value]


def check_same_bytes(tmp_path: Path, tool: Repack) -> None:
    one, two = two_builds(tmp_path, tool)
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_bytes_do_not_depend_on_date_umask_or_order(tmp_path: Path) -> None:
    check_same_bytes(tmp_path, repack)


def weaker(monkeypatch: pytest.MonkeyPatch, fault: str) -> Repack:
    """`repack` with one of its guarantees taken out."""
    if fault == "copied as it came":
        return lambda wheel, out, **_: Path(shutil.copy(wheel, out.mkdir() or out))
    real, clock = wheel_repack._write, itertools.count()

    def write(archive: zipfile.ZipFile, name: str, data: bytes, stamp: tuple[int, ...], *, executable: bool) -> None:
        if fault == "time of writing":
            stamp = (1980 + next(clock), *stamp[1:])
        real(archive, name, data, stamp, executable=executable)

    monkeypatch.setattr(wheel_repack, "_write", write)
    if fault == "order as it came":
        monkeypatch.setattr(wheel_repack, "sorted", lambda items, key=None: list(items), raising=False)
    return repack


@pytest.mark.parametrize("fault", ["copied as it came", "time of writing", "order as it came"])
def test_control_a_weaker_repack_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    tool = weaker(monkeypatch, fault)
    with pytest.raises(AssertionError):
        check_same_bytes(tmp_path, tool)


def test_record_covers_every_member(tmp_path: Path) -> None:
    wheel, _ = two_builds(tmp_path, repack)
    with zipfile.ZipFile(wheel) as archive:
        rows = {
            name: (digest, size)
            for name, digest, size in csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode()))
        }
        assert set(rows) == set(archive.namelist())
        assert archive.namelist()[-1] == f"{INFO}/RECORD"
        for name, (digest, size) in rows.items():
            if name.endswith("/RECORD"):
                assert (digest, size) == ("", "")
                continue
            data = archive.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={want}", str(len(data)))


def test_modes_tag_and_licences(tmp_path: Path) -> None:
    wheel, _ = two_builds(tmp_path, repack)
    assert wheel.name == "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
        assert {oct(mode) for name, mode in modes.items() if name != "demo/run.sh"} == {"0o100644"}
        assert oct(modes["demo/run.sh"]) == "0o100755"
        assert b"\nTag: py3-none-any\n" in archive.read(f"{INFO}/WHEEL")
        assert b"Root-Is-Purelib: true" in archive.read(f"{INFO}/WHEEL")
        assert archive.read(f"{INFO}/licenses/NOTICE") == b"n\n"
        head, _, body = archive.read(f"{INFO}/METADATA").partition(b"\n\n")
        assert head.endswith(b"License-File: LICENSE\nLicense-File: NOTICE")
        assert body == b"About it.\n"


@pytest.mark.parametrize(
    ("added", "removed", "says"),
    [
        ({"demo/fast.so": b"\x7fELF"}, None, "compiled code"),
        ({"demo/distribution.json": b"old"}, None, "already has demo/distribution.json"),
        ({"other-2.0.dist-info/METADATA": b""}, None, "one .dist-info folder"),
        ({}, INFO, "found none"),
    ],
)
def test_what_is_no_publishable_wheel_is_refused(
    tmp_path: Path, added: dict[str, bytes], removed: str | None, says: str
) -> None:
    files = {name: data for name, data in {**FILES, **added}.items() if not (removed and name.startswith(removed))}
    raw = raw_wheel(tmp_path / "a", year=2021, umask=0, reverse=False, files=files)
    with pytest.raises(RepackError, match=says):
        repack(raw, tmp_path / "out", epoch=0, extra={"demo/distribution.json": b"{}"}, licences={})
    assert not list(tmp_path.glob("out/*")), "nothing may be left behind"


def test_times_before_zip_begins_are_raised(tmp_path: Path) -> None:
    raw = raw_wheel(tmp_path / "a", year=2021, umask=0, reverse=False)
    with zipfile.ZipFile(repack(raw, tmp_path / "out", epoch=0, extra={}, licences={})) as archive:
        assert {info.date_time[:3] for info in archive.infolist()} == {(1980, 1, 1)}
