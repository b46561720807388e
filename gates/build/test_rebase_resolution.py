# SPDX-License-Identifier: Apache-2.0
"""A conflict resolved by hand: everything done in its tree is kept or named, and the report says what was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, write

BEGIN = ("rebase", "--upstream", "demo", "--accept", "--to")
GO_ON = ("rebase", "--upstream", "demo", "--continue")


def stopped(demo: Demo, tool: Tool) -> Path:
    """The tree of a rebase that stopped at `twenty`, the conflict edited but not added."""
    path = demo.upstream / "a.txt"
    path.write_bytes(path.read_bytes().replace(b"line 20\n", b"line XX\n"))
    tool.refused(demo, *BEGIN, demo.commit_upstream("next"), code=5)
    tree = demo.root / "build/rebase/demo/tree"
    start, rest = (tree / "a.txt").read_bytes().split(b"<<<<<<< upstream\n")
    write(tree / "a.txt", start + b"line XXII\n" + rest.split(b">>>>>>> patch\n")[1])
    return tree


def report(demo: Demo) -> str:
    return next((demo.root / "docs/rebase-reports").glob("*.md")).read_text()


def row(demo: Demo, name: str) -> str:
    return next(line for line in report(demo).splitlines() if line.startswith(f"| {name} |"))


def whole(demo: Demo, tool: Tool) -> None:
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")


def test_new_file_goes_to_the_overlay(demo: Demo, tool: Tool) -> None:
    tree = stopped(demo, tool)
    write(tree / "pkg/newfile.py", b"new = 1\n")
    git(tree, "add", "-A")
    tool.ok(demo, *GO_ON)
    assert (demo.overlay / "pkg/newfile.py").read_bytes() == b"new = 1\n"
    whole(demo, tool)
    assert (demo.tree / "pkg/newfile.py").exists()


def test_file_that_the_new_upstream_dropped_and_the_resolution_keeps(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "Two", "two")
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    (demo.upstream / "b.txt").unlink()
    tool.refused(demo, *BEGIN, demo.commit_upstream("drop"), code=5)
    tree = demo.root / "build/rebase/demo/tree"
    git(tree, "add", "b.txt")
    tool.ok(demo, *GO_ON)
    assert (demo.overlay / "b.txt").read_bytes() == b"one\n2\nthree\n"
    whole(demo, tool)


def test_untracked_file_is_named(demo: Demo, tool: Tool) -> None:
    tree = stopped(demo, tool)
    git(tree, "add", "a.txt")
    write(tree / "newfile.py", b"new = 1\n")
    before = demo.snapshot()
    error = tool.refused(demo, *GO_ON, code=5)
    assert "newfile.py" in error
    assert "git add" in error
    assert demo.snapshot() == before
    assert (tree / "newfile.py").exists()
    (tree / "newfile.py").unlink()
    tool.ok(demo, *GO_ON)


@pytest.mark.parametrize("path", ["pkg/ours.py", "own/deep/file.txt/x", "own"])
def test_new_file_in_the_place_of_an_overlay_file(path: str, demo: Demo, tool: Tool) -> None:
    tree = stopped(demo, tool)
    write(tree / path, b"new = 1\n")
    git(tree, "add", "-A")
    error = tool.refused(demo, *GO_ON, code=5)
    assert "takes the place of overlay file" in error
    git(tree, "rm", "-q", "--cached", path)
    (tree / path).unlink()
    tool.ok(demo, *GO_ON)


def test_report_says_resolved_with_both_texts(demo: Demo, tool: Tool) -> None:
    git(stopped(demo, tool), "add", "-A")
    tool.ok(demo, *GO_ON)
    assert "| resolved |" in row(demo, "twenty")
    assert "by hand" in row(demo, "twenty")
    assert "conflict" not in report(demo)
    assert "1 resolved" in report(demo)
    assert "```diff\n@@ -21 +21 @@\n-line 20\n+line twenty\n```" in report(demo)
    assert "-line XX\n+line XXII\n" in report(demo)


def test_report_says_dropped(demo: Demo, tool: Tool) -> None:
    git(stopped(demo, tool), "reset", "-q", "--hard")
    tool.ok(demo, *GO_ON)
    assert "| dropped |" in row(demo, "twenty")
    assert "conflict" not in row(demo, "twenty").replace("at its conflict", "")


def test_later_patches_are_judged_on_the_resolution(demo: Demo, tool: Tool) -> None:
    """The resolution made the line that the later patch changes; without it that patch would be in conflict."""
    demo.change(demo.edit("a.txt", b"line twenty\n", b"line twenty, more\n"), "More", "more")
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    tree = stopped(demo, tool)
    write(tree / "a.txt", (tree / "a.txt").read_bytes().replace(b"line XXII\n", b"line twenty\n"))
    git(tree, "add", "-A")
    tool.ok(demo, *GO_ON)
    assert "| resolved |" in row(demo, "twenty")
    assert "conflict" not in row(demo, "more")
    whole(demo, tool)


@pytest.mark.parametrize("branch", ["main", "detached"])
def test_commit_in_the_tree_is_the_resolution(branch: str, demo: Demo, tool: Tool) -> None:
    tree = stopped(demo, tool)
    git(tree, "add", "-A")
    if branch == "detached":
        git(tree, "checkout", "-q", "--detach")
    git(tree, "commit", "-q", "-m", "my resolution")
    write(tree / "pkg/more.py", b"more = 1\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "and more")
    tool.ok(demo, *GO_ON)
    assert "-line XX\n+line XXII\n" in (demo.patches / "twenty.patch").read_text()
    assert (demo.overlay / "pkg/more.py").exists()
    assert (demo.patches / "series").read_text() == "five.patch\ntwenty.patch\nlog.patch\n"
    assert "| resolved |" in row(demo, "twenty")
    whole(demo, tool)


def test_commits_below_the_conflict_are_kept(demo: Demo, tool: Tool) -> None:
    """Taking back the patches before it is no resolution; the way back is named and works."""
    tree = stopped(demo, tool)
    head = git(tree, "rev-parse", "HEAD")
    git(tree, "reset", "-q", "--hard", "HEAD~1")
    error = tool.refused(demo, *GO_ON, code=5)
    assert f"git reset --hard {head}" in error
    git(tree, "reset", "-q", "--hard", head)
    tool.ok(demo, *GO_ON)
    assert (demo.patches / "series").read_text() == "five.patch\nlog.patch\n"


def test_damaged_record_keeps_the_resolution(demo: Demo, tool: Tool) -> None:
    tree = stopped(demo, tool)
    write(tree.parent / "session.json", b"{")
    for words in (GO_ON, (*BEGIN, "main")):
        error = tool.refused(demo, *words, code=6)
        assert "record" in error
        assert (tree / "a.txt").exists()
