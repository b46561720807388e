# SPDX-License-Identifier: Apache-2.0
"""Write a wheel with next to nothing in it: what a check installs to see whether it is noticed."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from scripts.wheel_repack import record_hash


def tiny_wheel(
    folder: Path, name: str, version: str, *, requires: tuple[str, ...] = (), files: Mapping[str, str] | None = None
) -> Path:
    """Write `name`-`version`-py3-none-any.whl into `folder`, with `requires` and `files`; returns its path."""
    info = f"{name}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        *(f"Requires-Dist: {r}\n" for r in requires),
    ]
    members = {
        **(files or {f"{name}/__init__.py": ""}),
        f"{info}/METADATA": "".join(metadata),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},{record_hash(text.encode())},{len(text.encode())}\n" for path, text in members.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    return path
