# SPDX-License-Identifier: Apache-2.0
"""What the lock pins is the same bytes in every clone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gates.build.demo import ROOT, Demo, Tool, git, write

ODD = b"one\r\ntwo\r\nthree\n"


def clone_holds(demo: Demo, tool: Tool, folder: Path) -> None:
    """Lock a stack with CRLF in overlay and patch, commit it, and hold a clone to the lock."""
    write(demo.overlay / "own/crlf.txt", ODD)
    write(demo.overlay / "own/data.patch", ODD)
    write(demo.overlay / "own/series", ODD)
    tool.ok(demo, "trees")
    demo.change(demo.edit("crlf.txt", b"two\r\n", b"two\r\nours\r\n"), "Touch CRLF", "crlf")
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    write(demo.root / ".gitignore", b"build/\n")
    git(demo.root, "init", "-q")
    git(demo.root, "add", "-A")
    git(demo.root, "commit", "-q", "-m", "all")
    git(demo.folder, "clone", "-q", str(demo.root), str(folder / "project"))
    other = Demo(folder, demo.env)
    shutil.copytree(demo.cache, other.cache)
    assert tool.run(other, "lock", "--check").code == 0
    tool.ok(other, "verify")


def test_clone_holds_the_lock(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    shutil.copy(ROOT / ".gitattributes", demo.root)
    clone_holds(demo, tool, tmp_path / "clone")


def test_control_line_ends_converted_in_the_overlay(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    text = (ROOT / ".gitattributes").read_text()
    assert "overlay/** -text\n" in text
    (demo.root / ".gitattributes").write_text(text.replace("overlay/** -text\n", ""))
    with pytest.raises(AssertionError):
        clone_holds(demo, tool, tmp_path / "clone")
