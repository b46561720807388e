# SPDX-License-Identifier: Apache-2.0
"""Rebase: every outcome named for what it is, nothing written before it is accepted, conflicts that can be worked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, weakened, write
from gates.build.sdists import digest, make_sdist_demo, sdist


def move(demo: Demo, **edits: tuple[bytes, bytes]) -> str:
    """Edit upstream files (name with __ for /, _dot_ for .) and commit; returns the commit."""
    for key, (old, new) in edits.items():
        path = demo.upstream / key.replace("__", "/").replace("_dot_", ".")
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1))
    return demo.commit_upstream("next release")


def rows(out: str) -> dict[str, str]:
    """Outcome of every patch in a report."""
    table = [line.split("|") for line in out.splitlines() if line.startswith("| ")]
    return {cells[1].strip(): cells[2].strip() for cells in table if len(cells) == 6 and cells[1].strip() != "patch"}


def test_rehearsal_changes_nothing(demo: Demo, tool: Tool) -> None:
    commit = move(demo, a_dot_txt=(b"line 1\n", b"line zero\nline 1\n"))
    before, files = demo.snapshot(), demo.files()
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit)
    assert rows(out) == {"five": "offset", "twenty": "offset", "log": "clean"}
    assert demo.snapshot() == before
    assert demo.files() == files
    assert len(list((demo.root / "build/rebase-reports").iterdir())) == 1
    assert tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit) == out, "the same rebase, the same report"


def test_neighbours_that_changed_are_shown(demo: Demo, tool: Tool) -> None:
    commit = move(demo, a_dot_txt=(b"line 3\n", b"line three\n"))
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit)
    assert rows(out) == {"five": "resolved", "twenty": "offset", "log": "clean"}
    assert "before:\n\n```diff\n@@ -5,0 +6 @@\n+hook 5\n```" in out
    assert "line three" not in out, "the report quotes nothing of upstream that the patch does not take out"


def test_accept_writes_patches_lock_and_report(demo: Demo, tool: Tool) -> None:
    commit = move(demo, a_dot_txt=(b"line 1\n", b"line zero\nline 1\n"))
    tool.ok(demo, "rebase", "--upstream", "demo", "--to", "main", "--accept")
    lock = (demo.root / "upstream.lock").read_text()
    assert commit in lock
    assert "# a comment that must survive" in lock
    assert "@@ -6,0 +7 @@" in (demo.patches / "five.patch").read_text()
    assert len(list((demo.root / "docs/rebase-reports").glob("*.md"))) == 1
    tool.ok(demo, "lock", "--check")
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")
    assert (demo.tree / "a.txt").read_bytes().startswith(b"line zero\n")
    assert not (demo.root / "build/rebase/demo").exists()
    assert "at main already" in tool.refused(demo, "rebase", "--upstream", "demo", "--to", "main")


def conflicting(demo: Demo) -> str:
    return move(demo, a_dot_txt=(b"line 20\n", b"line XX\n"))


def test_conflict_is_opened_and_continued(demo: Demo, tool: Tool) -> None:
    commit = conflicting(demo)
    before = demo.snapshot()
    error = tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept", code=5)
    tree = demo.root / "build/rebase/demo/tree"
    assert "twenty" in error
    assert str(tree) in error
    assert "--continue" in error
    assert "--abort" in error
    assert demo.snapshot() == before, "nothing of the project changes at a conflict"
    text = (tree / "a.txt").read_bytes()
    for side in (b"line XX\n", b"line 20\n", b"line twenty\n"):
        assert side in text, "both sides and what was before are in the file"
    assert git(tree, "status", "--porcelain").splitlines() == ["UU a.txt"]
    assert b"hook 5\n" in text, "the patch before the conflict is in"
    assert "is not resolved" in tool.refused(demo, "rebase", "--upstream", "demo", "--continue", code=5)
    git(tree, "add", "a.txt")
    assert "conflict markers" in tool.refused(demo, "rebase", "--upstream", "demo", "--continue", code=5)
    assert "under way" in tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, code=6)
    start, rest = text.split(b"<<<<<<< upstream\n")
    write(tree / "a.txt", start + b"line XXII\n" + rest.split(b">>>>>>> patch\n")[1])
    assert "not added" in tool.refused(demo, "rebase", "--upstream", "demo", "--continue", code=5)
    git(tree, "add", "a.txt")
    assert demo.snapshot() == before
    tool.ok(demo, "rebase", "--upstream", "demo", "--continue")
    patch = (demo.patches / "twenty.patch").read_text()
    assert "-line XX\n+line XXII\n" in patch
    assert (demo.patches / "series").read_text() == "five.patch\ntwenty.patch\nlog.patch\n"
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")


def test_conflict_can_drop_the_patch(demo: Demo, tool: Tool) -> None:
    commit = conflicting(demo)
    tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept", code=5)
    git(demo.root / "build/rebase/demo/tree", "reset", "-q", "--hard")
    tool.ok(demo, "rebase", "--upstream", "demo", "--continue")
    assert (demo.patches / "series").read_text() == "five.patch\nlog.patch\n"
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")


def test_abort_leaves_everything(demo: Demo, tool: Tool) -> None:
    commit = conflicting(demo)
    before, files = demo.snapshot(), demo.files()
    tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept", code=5)
    tool.ok(demo, "rebase", "--upstream", "demo", "--abort")
    assert demo.snapshot() == before
    assert demo.files() == files
    tool.ok(demo, "verify")
    assert "no rebase" in tool.refused(demo, "rebase", "--upstream", "demo", "--abort", code=6)
    assert "no rebase" in tool.refused(demo, "rebase", "--upstream", "demo", "--continue", code=6)


def test_files_changed_under_a_session(demo: Demo, tool: Tool) -> None:
    tool.refused(demo, "rebase", "--upstream", "demo", "--to", conflicting(demo), "--accept", code=5)
    (demo.overlay / "own/deep/file.txt").write_bytes(b"meanwhile\n")
    assert "changed since the rebase began" in tool.refused(demo, "rebase", "--upstream", "demo", "--continue", code=6)


def test_drop_on_request(demo: Demo, tool: Tool) -> None:
    commit = conflicting(demo)
    assert "no patch `nine` to drop" in tool.refused(
        demo, "rebase", "--upstream", "demo", "--to", commit, "--drop", "nine"
    )
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit, "--drop", "twenty", "--accept")
    assert rows(out) == {"five": "offset", "twenty": "dropped", "log": "clean"}
    assert (demo.patches / "series").read_text() == "five.patch\nlog.patch\n"


def test_partly_upstream_is_resolved_not_empty(demo: Demo, tool: Tool) -> None:
    demo.change(
        {
            **demo.edit("b.txt", b"one\n", b"1\n"),
            **demo.edit("pkg/mod.py", b"    return y\n", b"    log(y)\n    return y\n"),
        },
        "Two places",
        "two",
    )
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    commit = move(demo, b_dot_txt=(b"one\n", b"1\n"))
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept")
    assert rows(out)["two"] == "resolved"
    assert "upstream has it" in out
    assert "b.txt" not in (demo.patches / "two.patch").read_text()
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")


def test_overlay_path_that_upstream_took(demo: Demo, tool: Tool) -> None:
    write(demo.upstream / "pkg/ours.py", b"theirs = 1\n")
    write(demo.upstream / "own/deep/file.txt/x", b"a folder now\n")
    commit = demo.commit_upstream("collide")
    before = demo.snapshot()
    result = tool.run(demo, "rebase", "--upstream", "demo", "--to", commit)
    assert result.code == 5
    assert "| `pkg/ours.py` | the tree has that file |" in result.out
    assert "| `own/deep/file.txt` | the tree has a folder of that name |" in result.out
    assert "2 overlay paths" in tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept", code=5)
    assert demo.snapshot() == before


def test_unexported_work_is_not_left_behind(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Not exported")
    commit = move(demo, a_dot_txt=(b"line 1\n", b"line one\n"))
    error = tool.refused(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept", code=6)
    assert "not exported" in error


@pytest.mark.parametrize("name", ["v2.0", "feature", "short", "full"])
def test_target_by_tag_branch_or_commit(demo: Demo, tool: Tool, name: str) -> None:
    commit = move(demo, a_dot_txt=(b"line 30\n", b"line thirty\n"))
    git(demo.upstream, "tag", "-a", "v2.0", "-m", "tag")
    git(demo.upstream, "branch", "feature")
    git(demo.upstream, "commit", "-q", "--allow-empty", "-m", "later")
    git(demo.upstream, "branch", "-f", "feature", commit)
    word = {"short": commit[:10], "full": commit}.get(name, name)
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", word)
    assert commit[:12] in out.splitlines()[0]
    assert (" to 2.0 (v2.0, " in out.splitlines()[0]) == (name == "v2.0")


def test_unknown_target(demo: Demo, tool: Tool) -> None:
    for word in ("v9", "0123456789"):
        assert word in tool.refused(demo, "rebase", "--upstream", "demo", "--to", word)
    assert "no upstream `x`" in tool.refused(demo, "rebase", "--upstream", "x", "--to", "v9")


def test_sdist_to_another_release(tmp_path: Path, tool: Tool) -> None:
    demo, archive = make_sdist_demo(tmp_path)
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    demo.change(demo.edit("demo/code.py", b"    return 1\n", b"    return one()\n"), "One", "one")
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    code = b"# moved\n\n\ndef f():\n    return 1\n\n\ndef g():\n    return 2\n"
    newer = sdist(archive.parent, "2.0", {"demo/code.py": code})
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", "2.0", "--accept")
    assert rows(out) == {"one": "resolved"}, "the first line of the file is a neighbour that changed"
    lock = (demo.root / "upstream.lock").read_text()
    assert digest(newer) in lock
    assert 'address = "demo==2.0"' in lock
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")
    assert "demo==7.0" in tool.refused(demo, "rebase", "--upstream", "demo", "--to", "7.0", code=4)


def test_moved_hunk_is_no_silent_shift(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    """Control: a build that calls every merge clean hides what changed beside a hunk."""
    weak = weakened(
        tmp_path / "weak",
        ("carrying.py", "        if _around(old_lines, hunk) != _around(new_lines, twin):", "        if False:"),
    )
    commit = move(demo, a_dot_txt=(b"line 3\n", b"line three\n"))
    assert rows(weak.ok(demo, "rebase", "--upstream", "demo", "--to", commit))["five"] == "offset"
    assert rows(tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit))["five"] == "resolved"
