# SPDX-License-Identifier: Apache-2.0
"""Folders and files where they do not belong, names that are no text, disks that are full: named, nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import ROOT, Demo, Tool, weakened, write
from scripts import stack, transaction, worktree
from scripts.errors import ToolError

Maker = Callable[..., Demo]


@pytest.mark.parametrize("name", ["new\nline", "\udcff", "ü q\"u'o", "#x"])
def test_a_project_and_cache_in_a_folder_of_any_name(demo: Demo, tool: Tool, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "x"
    shutil.copytree(demo.folder, folder, symlinks=True)
    moved = Demo(folder)
    for words in (["trees", "--force"], ["lock"], ["verify"], ["export"], ["show", "five"]):
        tool.ok(moved, *words)
    assert moved.snapshot() == demo.snapshot()


def test_control_a_borrowed_folder_that_is_not_quoted_is_caught(demo: Demo, tmp_path: Path) -> None:
    weak = weakened(
        tmp_path / "weak",
        ("worktree.py", 'named = quote(os.fsencode(cached / "objects"))', 'named = str(cached / "objects")'),
    )
    with pytest.raises(AssertionError):
        test_a_project_and_cache_in_a_folder_of_any_name(demo, weak, tmp_path, "new\nline")


@pytest.mark.parametrize("verb", ["lock", "trees", "lint", "export"])
def test_an_overlay_that_is_no_folder(demo: Demo, tool: Tool, verb: str) -> None:
    """It would read as an empty one, and `lock` would pin that."""
    shutil.rmtree(demo.overlay)
    demo.overlay.write_text("a file\n")
    before = demo.snapshot()
    assert "the overlay is no folder" in tool.refused(demo, verb)
    assert demo.snapshot() == before


def test_an_overlay_folder_that_cannot_be_read(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: bytes) -> object:
        if os.fsencode(path).endswith(b"/own/deep"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    assert len(stack.read_overlay(demo.overlay)) == 2
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="own/deep"):
        stack.read_overlay(demo.overlay)


@pytest.mark.parametrize("target", ["/nonexistent", "elsewhere"])
def test_a_link_in_the_place_of_a_tree(demo: Demo, tool: Tool, target: str) -> None:
    files = demo.files()
    shutil.rmtree(demo.tree)
    write(demo.tree.parent / "elsewhere/mine.txt", b"mine\n")
    demo.tree.symlink_to(target)
    assert "it was not built by this tool" in tool.refused(demo, "trees", code=6)
    tool.ok(demo, "trees", "--force")
    assert demo.files() == files
    assert (demo.tree.parent / "elsewhere/mine.txt").read_bytes() == b"mine\n"


@pytest.mark.parametrize("text", ["{", "[1]", '[{"path": 1, "staged": null}]', "", "null"])
def test_a_damaged_journal_is_named(demo: Demo, tool: Tool, text: str) -> None:
    pending = demo.root / "build/journal/pending"
    write(pending / "manifest.json", text.encode())
    before = demo.snapshot()
    error = tool.refused(demo, "status", code=6)
    assert "the record of a change that was interrupted is damaged" in error
    assert f"where: {pending / 'manifest.json'}" in error
    assert demo.snapshot() == before
    shutil.rmtree(pending)
    tool.ok(demo, "status")


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"after": 1}'])
def test_a_damaged_record_of_a_rebase_is_named(demo: Demo, tool: Tool, text: str) -> None:
    """Taken for none, the next rebase would remove the tree in which someone resolved a conflict."""
    write(demo.root / "build/rebase/demo/session.json", text.encode())
    error = tool.refused(demo, "rebase", "--upstream", "demo", "--abort", code=6)
    assert "the record of the rebase of `demo` under way is damaged" in error
    shutil.rmtree(demo.root / "build/rebase/demo")
    assert "no rebase of `demo` is under way" in tool.refused(demo, "rebase", "--upstream", "demo", "--abort", code=6)


def test_build_on_another_file_system(demo: Demo, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rename cannot cross file systems; the change is carried out all the same, links and modes kept."""
    real = os.replace

    def replace(source: str | Path, target: str | Path) -> None:
        if "pending" in str(source) and "pending" not in str(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        real(source, target)

    (demo.tree / "own/link").symlink_to("../a.txt")
    demo.change({"own/deep/file.txt": b"new\n"}, "More")
    (demo.tree / "own/deep/file.txt").chmod(0o755)
    demo.change({}, "Mode")
    monkeypatch.setattr(transaction.os, "replace", replace)
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    monkeypatch.undo()
    tool.ok(demo, "verify")
    assert (demo.overlay / "own/link").is_symlink()
    assert (demo.overlay / "own/deep/file.txt").stat().st_mode & 0o777 == 0o755
    assert not list(demo.root.rglob(".*.new"))
    assert not (demo.root / "build/journal/pending").exists()


@pytest.mark.parametrize("place", ["copy", "git"])
def test_no_space_for_a_tree(demo: Demo, tool: Tool, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Whoever meets the full disk, the error names the tree, not the cache it is made from; the old tree stands."""
    files = demo.files()
    (demo.patches / "series").write_text("five.patch\nlog.patch\n")

    def full(cached: Path, git_dir: Path) -> None:
        if place == "copy":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cached))
        raise worktree.git.GitError(["read-tree"], 128, "error: unable to write file run.sh")

    monkeypatch.setattr(worktree, "copy_objects", full)
    error = tool.refused(demo, "trees")
    assert "cannot write the tree: " in error
    assert f"where: {demo.tree}" in error
    assert demo.files() == files
    assert [p.name for p in demo.tree.parent.iterdir()] == ["demo"]


def test_no_space_for_temporary_files_names_the_folder(demo: Demo, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "fatal: unable to write loose object file: No space left on device"

    def full(*words: object) -> None:
        raise worktree.git.GitError(["fast-import"], 128, said, where=Path("/scratch"))

    monkeypatch.setattr(worktree, "write_commits", full)
    error = tool.refused(demo, "lock")
    assert "where: /scratch" in error
    assert "next:  free space there (TMPDIR chooses" in error


def shell(demo: Demo, line: str) -> subprocess.CompletedProcess[str]:
    """Run `line` in a shell, with `tool` standing for the tool's command."""
    tool = Tool()
    words = " ".join(tool.command(demo, "show", "five", "-U", "1000"))
    return subprocess.run(
        ["bash", "-c", f"tool() {{ {words}; }}; {line}"],
        cwd=ROOT,
        env=tool.environment(demo),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_reader_that_has_enough_is_no_error(demo: Demo) -> None:
    done = shell(demo, "tool > >(exec true); wait $!; tool | true; echo ${PIPESTATUS[0]}")
    assert not done.stderr
    assert done.stdout.strip() in ("0", "141"), "as a program that met SIGPIPE, unless all fitted into the pipe"


def test_stdout_closed_or_full(demo: Demo) -> None:
    assert shell(demo, "tool >&-").stderr == ""
    done = shell(demo, "tool >/dev/full")
    assert done.returncode == 3
    assert "No space left on device\n  where: the system names no path: standard output" in done.stderr


def test_an_unreadable_overlay_raises_the_tools_error(demo: Demo) -> None:
    with pytest.raises(ToolError, match="no folder"):
        stack.read_overlay(demo.overlay / "own/deep/file.txt")
