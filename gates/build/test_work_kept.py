# SPDX-License-Identifier: Apache-2.0
"""Work that lies in a tree or beside it is kept: a rebuild refuses to drop it, export writes all of it or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, weakened, write


def stash(demo: Demo) -> None:
    write(demo.tree / "b.txt", b"my work\n")
    git(demo.tree, "stash", "-q")


def other_branch(demo: Demo) -> None:
    git(demo.tree, "checkout", "-q", "-b", "wip")
    demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "Wip")
    git(demo.tree, "checkout", "-q", "main")


def tag(demo: Demo) -> None:
    other_branch(demo)
    git(demo.tree, "tag", "keep", "wip")
    git(demo.tree, "branch", "-q", "-D", "wip")


def hidden_file(demo: Demo) -> None:
    git(demo.tree, "config", "status.showUntrackedFiles", "no")
    write(demo.tree / "precious.txt", b"x\n")


def assumed_unchanged(demo: Demo) -> None:
    git(demo.tree, "update-index", "--assume-unchanged", "b.txt")
    write(demo.tree / "b.txt", b"my work\n")


def skipped(demo: Demo) -> None:
    git(demo.tree, "update-index", "--skip-worktree", "b.txt")
    write(demo.tree / "b.txt", b"my work\n")


WORK: dict[str, tuple[Callable[[Demo], None], str]] = {
    "stash": (stash, "a stash"),
    "branch": (other_branch, "only refs/heads/wip holds"),
    "tag": (tag, "only refs/tags/keep holds"),
    "assumed unchanged": (assumed_unchanged, "a change to b.txt"),
    "skipped": (skipped, "a change to b.txt"),
    "hidden untracked file": (hidden_file, "'precious.txt'"),
}


def rebuild_refuses(demo: Demo, tool: Tool, work: str) -> None:
    make, message = WORK[work]
    make(demo)
    write(demo.overlay / "own/next.txt", b"x\n")
    error = tool.refused(demo, "trees", code=6)
    assert message in error, error
    assert not (demo.tree / "own/next.txt").exists()


@pytest.mark.parametrize("work", list(WORK))
def test_rebuild_keeps_work(work: str, demo: Demo, tool: Tool) -> None:
    rebuild_refuses(demo, tool, work)
    tool.ok(demo, "trees", "--force")
    assert (demo.tree / "own/next.txt").exists()


@pytest.mark.parametrize("work", ["stash", "branch", "tag"])
def test_control_a_rebuild_that_looks_at_its_branch_alone(work: str, demo: Demo, tmp_path: Path) -> None:
    weak = weakened(tmp_path / "weak", ("worktree.py", "    return beside\n", "    return None\n"))
    with pytest.raises(AssertionError):
        rebuild_refuses(demo, weak, work)


def test_branches_that_hold_nothing_more_are_no_work(demo: Demo, tool: Tool) -> None:
    git(demo.tree, "branch", "older", "HEAD~1")
    write(demo.overlay / "own/next.txt", b"x\n")
    assert "rebuilt" in tool.ok(demo, "trees")


@pytest.mark.parametrize(("step", "message"), [("detach", "on no branch"), ("bisect", "a bisect is under way")])
def test_export_off_the_branch_changes_nothing(step: str, message: str, demo: Demo, tool: Tool) -> None:
    if step == "detach":
        git(demo.tree, "checkout", "-q", "--detach")
        demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "Detached")
    else:
        git(demo.tree, "bisect", "start")
    before = demo.snapshot()
    assert message in tool.refused(demo, "export", code=6)
    assert demo.snapshot() == before


@pytest.mark.parametrize("turn", ["file into folder", "folder into file"])
def test_overlay_file_and_folder_of_one_name(turn: str, demo: Demo, tool: Tool) -> None:
    first, second = (
        ("own/thing", "own/thing/sub.txt") if turn == "file into folder" else ("own/thing/sub.txt", "own/thing")
    )
    demo.change({first: b"one\n"}, "First")
    tool.ok(demo, "export")
    (demo.tree / first).unlink()
    shutil.rmtree(demo.tree / "own/thing", ignore_errors=True)
    demo.change({second: b"two\n"}, "Second")
    tool.ok(demo, "export")
    assert (demo.overlay / second).read_bytes() == b"two\n"
    assert "unchanged" in tool.ok(demo, "trees")
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


def test_overlay_turn_survives_a_kill_between_any_two_steps(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    demo.change({"own/thing": b"one\n"}, "First")
    tool.ok(demo, "export")
    (demo.tree / "own/thing").unlink()
    demo.change({"own/thing/sub.txt": b"two\n", "own/thing/last.txt": b"three\n"}, "Second")
    place = "            _move(staged, target)\n"
    dying = weakened(tmp_path / "dying", ("transaction.py", place, place + "            os.kill(os.getpid(), 9)\n"))
    assert dying.run(demo, "export").code == -9
    tool.ok(demo, "status")
    assert sorted(os.listdir(demo.overlay / "own/thing")) == ["last.txt", "sub.txt"]


def test_leftover_in_the_place_of_a_file(demo: Demo, tool: Tool) -> None:
    """What the overlay leaves out may still stand in the way; then nothing is begun."""
    demo.change({"own/thing": b"one\n"}, "First")
    write(demo.overlay / "own/thing/__pycache__/x.pyc", b"x")
    before = demo.snapshot()
    error = tool.refused(demo, "export", code=6)
    assert "overlay/demo/own/thing/__pycache__/x.pyc is in its place" in error
    assert demo.snapshot() == before
    tool.ok(demo, "status")


@pytest.mark.parametrize("name", ["own/__pycache__/x.txt", "own/y.swp", "own/notes~"])
def test_names_the_overlay_leaves_out_are_not_exported(name: str, demo: Demo, tool: Tool) -> None:
    """Written to overlay/, the next `trees` would drop them without a word."""
    demo.change({name: b"x\n"}, "Odd name")
    before = demo.snapshot()
    assert name in tool.refused(demo, "export", code=6)
    assert demo.snapshot() == before


def test_control_character_in_a_message(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "Bell \x01 rings", "bell")
    tool.ok(demo, "export")
    assert b"Subject: Bell \x01 rings\n" in (demo.patches / "bell.patch").read_bytes()
    assert "unchanged" in tool.ok(demo, "trees")


@pytest.mark.parametrize("stamp", ["[]", '{"inputs": 1, "base": "--help", "head": 3, "tree": []}'])
def test_damaged_record_of_a_tree(stamp: str, demo: Demo, tool: Tool) -> None:
    write(demo.tree / ".git/frontier.json", stamp.encode())
    assert "record is damaged" in tool.refused(demo, "trees", code=6)
    tool.refused(demo, "export", code=6)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_forced_rebuild_replaces_what_is_no_folder(kind: str, demo: Demo, tool: Tool) -> None:
    shutil.move(demo.tree, demo.folder / "elsewhere")
    if kind == "file":
        demo.tree.write_text("x")
    else:
        demo.tree.symlink_to(demo.folder / "elsewhere")
    tool.ok(demo, "trees", "--force")
    if kind == "file":
        tool.ok(demo, "verify")
    assert (demo.folder / "elsewhere/.git").exists()


@pytest.mark.parametrize("turn", ["on a branch", "detached", "detached with commits"])
def test_linked_worktree_is_named(turn: str, demo: Demo, tool: Tool) -> None:
    """Its index and HEAD lie in the repository of the tree."""
    place = demo.folder / "linked"
    git(demo.tree, "worktree", "add", "-q", *(["-b", "side"] if turn == "on a branch" else ["--detach"]), str(place))
    if turn == "detached with commits":
        git(place, "commit", "-q", "--allow-empty", "-m", "Side")
    write(demo.overlay / "own/next.txt", b"x\n")
    error = tool.refused(demo, "trees", code=6)
    assert f"the linked worktree {place}" in error
    assert f"worktree remove {place}" in error
    assert git(place, "status", "--porcelain") == ""
    git(demo.tree, "worktree", "remove", str(place))
    tool.ok(demo, "trees")


def test_worktree_whose_folder_is_gone_is_no_work(demo: Demo, tool: Tool) -> None:
    git(demo.tree, "worktree", "add", "-q", "--detach", str(demo.folder / "linked"))
    shutil.rmtree(demo.folder / "linked")
    write(demo.overlay / "own/next.txt", b"x\n")
    tool.ok(demo, "trees")


@pytest.mark.parametrize("verb", ["cherry-pick", "revert"])
def test_operation_of_several_commits_that_waits(verb: str, demo: Demo, tool: Tool) -> None:
    """The commit it stopped at is made by hand: no CHERRY_PICK_HEAD is left, but commits still wait."""
    git(demo.tree, "checkout", "-q", "-b", "side", "HEAD~1")
    demo.change(demo.edit("b.txt", b"one\n", b"side\n"), "Clash", "clash")
    demo.change(demo.edit("b.txt", b"three\n", b"3\n"), "Later", "later")
    git(demo.tree, "checkout", "-q", "main")
    demo.change(demo.edit("b.txt", b"one\n", b"main\n"), "Here", "here")
    demo.change(demo.edit("b.txt", b"main\n", b"again\n"), "Here too", "here-too")
    words = ["side~2..side"] if verb == "cherry-pick" else ["--no-edit", "HEAD~1", "HEAD~2"]
    done = subprocess.run(["git", "-C", str(demo.tree), verb, *words], capture_output=True, check=False)
    assert done.returncode
    git(demo.tree, "add", "-A")
    git(demo.tree, "commit", "-q", "--allow-empty", "-m", "Resolved")
    assert not (demo.tree / ".git/CHERRY_PICK_HEAD").exists()
    before = demo.snapshot()
    error = tool.refused(demo, "export", code=6)
    assert f"a {verb} is under way" in error
    assert f"git {verb} --continue" in error
    assert demo.snapshot() == before


def test_mark_without_a_change_is_no_work(demo: Demo, tool: Tool) -> None:
    git(demo.tree, "update-index", "--assume-unchanged", "b.txt")
    assert "unchanged" in tool.ok(demo, "trees")
    write(demo.overlay / "own/next.txt", b"x\n")
    assert "rebuilt" in tool.ok(demo, "trees")
