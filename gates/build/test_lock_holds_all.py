# SPDX-License-Identifier: Apache-2.0
"""Nothing in the lock goes unread, and nothing it pins is missing from version control."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, weakened, write

UNKNOWN = {
    "key at the top": ("format = 1\n", "format = 1\nnote = 1\n", "'note', which is no key"),
    "table at the top": ("[upstream.demo]\n", "[extra]\na = 1\n\n[upstream.demo]\n", "'extra', which is no key"),
    "key of an upstream": ('kind = "git"\n', 'kind = "git"\nmirror = "x"\n', "'upstream.demo.mirror'"),
    "misspelt key": ('base-tree = "', 'base_tree = "', "'upstream.demo.base_tree'"),
    "pin of the other kind": ('kind = "git"\n', f'kind = "git"\nsha256 = "{"0" * 64}"\n', "'upstream.demo.sha256'"),
    "table of an upstream": (
        "[upstream.demo.files]\n",
        "[upstream.demo.mirrors]\na = 1\n\n[upstream.demo.files]\n",
        "'upstream.demo.mirrors'",
    ),
}


def add_unknown(demo: Demo, kind: str) -> str:
    """Put an unknown key into the lock; returns what the error must say."""
    old, new, says = UNKNOWN[kind]
    path = demo.root / "upstream.lock"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return says


@pytest.mark.parametrize("kind", list(UNKNOWN))
def test_an_unknown_key_is_refused_by_name(demo: Demo, tool: Tool, kind: str) -> None:
    says = add_unknown(demo, kind)
    before = demo.snapshot()
    for verb in (["lock"], ["lock", "--check"], ["verify"], ["trees"], ["wheels"]):
        error = tool.refused(demo, *verb)
        assert says in error
        assert "next:  remove it, or correct it to one of" in error
    assert demo.snapshot() == before


def test_control_a_reader_that_takes_any_key_is_caught(demo: Demo, tmp_path: Path) -> None:
    weak = weakened(
        tmp_path / "weak", ("lockfile.py", "[key for key in table if key not in known]", "[key for key in table if 0]")
    )
    add_unknown(demo, "key of an upstream")
    with pytest.raises(AssertionError):
        weak.refused(demo, "verify")


def test_comments_and_layout_are_free(demo: Demo, tool: Tool) -> None:
    """They are for people: outside the lock hash, and kept when the lock is rewritten."""
    path = demo.root / "upstream.lock"
    stated = tool.ok(demo, "lock")
    path.write_text(path.read_text().replace("format = 1\n", "# why\n\nformat = 1   # aside\n"))
    assert tool.ok(demo, "lock", "--check") == stated
    tool.ok(demo, "verify")
    (demo.overlay / "own/deep/file.txt").write_bytes(b"new\n")
    assert tool.ok(demo, "lock") != stated
    assert "# why\n\nformat = 1   # aside\n" in path.read_text()


def test_a_listing_that_does_not_come_to_its_digest(demo: Demo, tool: Tool) -> None:
    """The lock hash covers the listing of files through their digest, so the digest must be theirs."""
    path = demo.root / "upstream.lock"
    name = '"overlay/demo/own/deep/file.txt" = "'
    path.write_text(path.read_text().replace(name, name + "0"))
    assert "the files listed for `demo` come to digest" in tool.refused(demo, "verify", code=1)
    assert "the files listed for `demo` come to digest" in tool.refused(demo, "wheels")


def committed(demo: Demo) -> None:
    """Put the whole project under version control."""
    write(demo.root / ".gitignore", b"/build/\n*.log\n")
    git(demo.root, "init", "-q")
    git(demo.root, "add", "-A")
    git(demo.root, "commit", "-q", "-m", "project")


STRAYS = {
    "overlay": ("overlay/demo/own/new file.txt", "git add`"),
    "ignored": ("overlay/demo/own/run.log", "git add -f`"),
    "odd name": ("overlay/demo/own/ü\n.txt", "git add`"),
    "patch": ("patches/demo/new.patch", "git add`"),
}


def add_stray(demo: Demo, kind: str) -> str:
    """Add a file that the lock would pin and version control does not have; returns its name as shown."""
    name = STRAYS[kind][0]
    if kind == "patch":
        text = (demo.patches / "five.patch").read_bytes().replace(b"Subject: Insert", b"Subject: Again insert")
        text = text.partition(b"\ndiff --git")[0] + b"\ndiff --git a/b.txt b/b.txt\nold mode 100644\nnew mode 100755\n"
        write(demo.root / name, text)
        with (demo.patches / "series").open("a") as handle:
            handle.write("new.patch\n")
    else:
        write(demo.root / name, b"new\n")
    return '"own/\\303\\274\\n.txt"' if kind == "odd name" else name


@pytest.mark.parametrize("kind", list(STRAYS))
def test_a_file_without_version_control_is_not_locked(demo: Demo, tool: Tool, kind: str) -> None:
    committed(demo)
    tool.ok(demo, "lock", "--check")
    shown = add_stray(demo, kind)
    before = demo.snapshot()
    error = tool.refused(demo, "lock")
    assert shown in error
    assert STRAYS[kind][1] in error, "the next action"
    assert demo.snapshot() == before
    git(demo.root, "add", "-f", "-N", STRAYS[kind][0])
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")
    git(demo.root, "rm", "-q", "-f", "--cached", STRAYS[kind][0])
    for words in (["lock", "--check"], ["verify"]):
        error = tool.refused(demo, *words, code=1)
        assert "is not under version control: `git add` it" in error
        assert shown.split("/")[-1] in error


def test_control_a_lock_that_takes_what_lies_there_is_caught(demo: Demo, tmp_path: Path) -> None:
    weak = weakened(tmp_path / "weak", ("lock.py", "    refuse_untracked(project, now)\n", ""))
    committed(demo)
    add_stray(demo, "ignored")
    with pytest.raises(AssertionError):
        weak.refused(demo, "lock")


def test_a_project_outside_version_control_is_its_own(demo: Demo, tool: Tool) -> None:
    """An unpacked archive has nothing to compare with, nor has one that lies in somebody's repository."""
    add_stray(demo, "overlay")
    tool.ok(demo, "lock")
    git(demo.folder, "init", "-q")
    tool.ok(demo, "lock")
    tool.ok(demo, "lock", "--check")
