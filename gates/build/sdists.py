# SPDX-License-Identifier: Apache-2.0
"""Projects whose upstream is an sdist, served by a folder that stands for the user's package index."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

from gates.build.demo import Demo, write

LOCK = """\
format = 1
lock-hash = ""

[upstream.demo]
kind = "sdist"
address = "demo=={version}"
version = "{version}"
sha256 = "{sha256}"
base-tree = ""
patched-tree = ""
digest = ""

[upstream.demo.files]
"""
# Executing any of it must fail: the tool only unpacks.
PYPROJECT = b'[build-system]\nrequires = ["a-package-that-does-not-exist"]\nbuild-backend = "setuptools.build_meta"\n'
SETUP = b"raise SystemExit('setup.py was executed')\n"


def sdist(
    folder: Path, version: str, extra: dict[str, bytes] | None = None, members: list[tarfile.TarInfo] | None = None
) -> Path:
    """Write demo-<version>.tar.gz into `folder`, byte for byte the same each time; returns its path."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n\nText: not a field\n".encode(),
        "pyproject.toml": PYPROJECT,
        "setup.py": SETUP,
        "demo/__init__.py": b"",
        "demo/code.py": b"def f():\n    return 1\n\n\ndef g():\n    return 2\n",
        **(extra or {}),
    }
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"demo-{version}/{name}")
            info.size = len(content)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for info in members or []:
            tar.addfile(info, io.BytesIO(b"x" * info.size) if info.isreg() else None)
    path = folder / f"demo-{version}.tar.gz"
    write(path, gzip.compress(raw.getvalue(), mtime=0))
    return path


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_sdist_demo(folder: Path, **words: object) -> tuple[Demo, Path]:
    """A project over demo 1.0, with pip configured to find archives in a folder only; returns it and the archive."""
    demo = Demo(folder / "sdist-demo")
    index = demo.folder / "index"
    archive = sdist(index, "1.0", **words)  # type: ignore[arg-type]
    demo.patches.mkdir(parents=True)
    (demo.patches / "series").write_text("")
    write(demo.root / "gates/test_demo.py", b"def test_x():\n    pass\n")
    (demo.root / "upstream.lock").write_text(LOCK.format(version="1.0", sha256=digest(archive)))
    # The user's pip settings are what counts: here they allow one folder and nothing else.
    demo.env.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index), PIP_CONFIG_FILE="/dev/null", PIP_NO_CACHE_DIR="1")
    return demo, archive
