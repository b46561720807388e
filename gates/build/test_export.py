# SPDX-License-Identifier: Apache-2.0
"""Export: what a maintainer does in build/trees comes back as files, or is refused with nothing changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gates.build.demo import FIELDS, Demo, Tool, git, write


def test_nothing_changed_nothing_written(demo: Demo, tool: Tool) -> None:
    before, head = demo.snapshot(), git(demo.tree, "rev-parse", "HEAD")
    assert tool.ok(demo, "export") == ""
    assert demo.snapshot() == before
    assert git(demo.tree, "rev-parse", "HEAD") == head


def test_new_commit_becomes_patch_and_overlay(demo: Demo, tool: Tool) -> None:
    edits = demo.edit("b.txt", b"two\n", b"two\nhook\n")
    demo.change({**edits, "own/new.txt": b"new\n"}, "Hook after two")
    out = tool.ok(demo, "export").splitlines()
    assert out == ["patches/demo/hook-after-two.patch", "patches/demo/series", "overlay/demo/own/new.txt"]
    patch = (demo.patches / "hook-after-two.patch").read_text()
    assert patch.startswith("Subject: Hook after two\nDescription: why\nAuthor: T <t@invalid>\nOrigin: vendor\n")
    assert patch.endswith("\n@@ -2,0 +3 @@\n+hook\n"), "our lines only, nothing of upstream"
    assert "two" not in patch.partition("@@")[2]
    assert (demo.patches / "series").read_text().endswith("log.patch\nhook-after-two.patch\n")
    assert "unchanged" in tool.ok(demo, "trees"), "the tree is the one just exported"
    subjects = git(demo.tree, "log", "--reverse", "--format=%s|%an").splitlines()
    assert subjects[1:] == [
        "Insert after five|T", "Change twenty|T", "Log in f|T", "Hook after two|T", "Overlay|vllm-gaudi-frontier",
    ]  # fmt: skip


def test_amended_patch_changes_one_file(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("a.txt", b"hook 5\n", b"better hook 5\n"), "fixup! Insert after five")
    env = {"GIT_SEQUENCE_EDITOR": "true", "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": "/usr/bin:/bin"}
    base = git(demo.tree, "rev-parse", "refs/frontier/base")
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@invalid", "rebase", "-q", "-i", "--autosquash", base],
        cwd=demo.tree, env=env, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = tool.ok(demo, "export").splitlines()
    # The second patch changes the same file: its pre-image and post-image ids move with the first.
    assert out == ["patches/demo/five.patch", "patches/demo/twenty.patch"]
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


def test_order_and_removal_follow_the_commits(demo: Demo, tool: Tool) -> None:
    commits = git(demo.tree, "rev-list", "--reverse", "refs/frontier/base..HEAD").split()
    git(demo.tree, "reset", "-q", "--hard", "refs/frontier/base")
    for commit in (commits[2], commits[0], commits[3]):
        git(demo.tree, "cherry-pick", commit)
    out = tool.ok(demo, "export").splitlines()
    assert (demo.patches / "series").read_text() == "log.patch\nfive.patch\n"
    assert "patches/demo/twenty.patch" in out
    assert not (demo.patches / "twenty.patch").exists()


def test_comments_of_the_series_stay(demo: Demo, tool: Tool) -> None:
    path = demo.patches / "series"
    path.write_text("# first\nfive.patch  # why here\n\n# about both\ntwenty.patch\nlog.patch\n# end\n")
    tool.ok(demo, "trees")
    tool.ok(demo, "export")
    text = path.read_text()
    assert text == "# first\nfive.patch  # why here\n\n# about both\ntwenty.patch\nlog.patch\n# end\n"


def test_overlay_removal_and_prune(demo: Demo, tool: Tool) -> None:
    demo.change({"own/deep/file.txt": None}, "Remove")
    assert tool.ok(demo, "export").splitlines() == ["overlay/demo/own/deep/file.txt"]
    assert not (demo.overlay / "own").exists()
    assert (demo.overlay / "pkg/ours.py").exists()


def test_deleted_upstream_file_is_a_patch(demo: Demo, tool: Tool) -> None:
    demo.change({"b.txt": None, "no_newline.txt": b"first\nlast, with newline\n"}, "Delete", "delete")
    tool.ok(demo, "export")
    text = (demo.patches / "delete.patch").read_text()
    assert "deleted file mode 100644" in text
    assert "\\ No newline at end of file" in text
    (demo.patches / "series").write_text((demo.patches / "series").read_text() + "\n")
    tool.ok(demo, "trees")
    assert not (demo.tree / "b.txt").exists()


def refuses(demo: Demo, tool: Tool, message: str, code: int = 6) -> None:
    before = demo.snapshot()
    error = tool.refused(demo, "export", code=code)
    assert message in error, error
    assert demo.snapshot() == before


def test_dirty_tree(demo: Demo, tool: Tool) -> None:
    write(demo.tree / "a.txt", b"dirty\n")
    refuses(demo, tool, "a.txt")
    git(demo.tree, "checkout", "-q", "a.txt")
    write(demo.tree / "untracked.txt", b"dirty\n")
    refuses(demo, tool, "untracked.txt")


def test_mid_rebase(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("a.txt", b"line twenty", b"other"), "Clash")
    subprocess.run(
        ["git", "-C", str(demo.tree), "rebase", "-q", "--onto", "refs/frontier/base", "HEAD~1"],
        capture_output=True, check=False,
    )  # fmt: skip
    refuses(demo, tool, "rebase is under way")


def test_merge_commit(demo: Demo, tool: Tool) -> None:
    git(demo.tree, "checkout", "-q", "-b", "side", "HEAD~1")
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Side")
    git(demo.tree, "checkout", "-q", "main")
    git(demo.tree, "merge", "-q", "--no-ff", "side", "-m", "merge")
    refuses(demo, tool, "is a merge")


def test_no_tree(demo: Demo, tool: Tool) -> None:
    shutil.rmtree(demo.root / "build")
    refuses(demo, tool, "no tree is built", 3)


def test_files_edited_beside_the_tree(demo: Demo, tool: Tool) -> None:
    """Neither side is overwritten when both moved on."""
    (demo.overlay / "own/deep/file.txt").write_bytes(b"edited here\n")
    refuses(demo, tool, "edited after its tree was built")
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "And there")
    refuses(demo, tool, "edited after its tree was built")
    error = tool.refused(demo, "trees", code=6)
    assert "commits that were not exported" in error
    tool.ok(demo, "trees", "--force")
    assert (demo.tree / "own/deep/file.txt").read_bytes() == b"edited here\n"


@pytest.mark.parametrize(
    ("path", "target", "message"), [("own/l", "/etc/passwd", "points outside"), ("own/l", "../../x", "points outside")]
)
def test_link_that_leaves_the_tree(demo: Demo, tool: Tool, path: str, target: str, message: str) -> None:
    (demo.tree / path).symlink_to(target)
    demo.change({}, "Link")
    refuses(demo, tool, message, 3)


def test_last_update_moves_only_with_the_patch(demo: Demo, tool: Tool) -> None:
    before = {p.name: p.read_text() for p in demo.patches.glob("*.patch")}
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Another", "another")
    tool.ok(demo, "export")
    assert {n: (demo.patches / n).read_text() for n in before} == before
    assert "Last-Update: 2026-01-02" in (demo.patches / "another.patch").read_text()


def test_header_is_kept_word_for_word(demo: Demo, tool: Tool) -> None:
    fields = FIELDS.replace("Description: why", "Description: ümlaut, colon: and\n .\n  indented\n # no comment")
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Words", "words", fields)
    tool.ok(demo, "export")
    text = (demo.patches / "words.patch").read_text()
    assert "Description: ümlaut, colon: and\n .\n  indented\n # no comment\n" in text
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


def test_show_gives_context(demo: Demo, tool: Tool) -> None:
    assert " line 4\n" in tool.ok(demo, "show", "five", "-U", "2")
    assert "line 1\n" in tool.ok(demo, "show", "demo/five.patch", "-U", "50")
    assert "no patch `none`" in tool.refused(demo, "show", "none")


def test_author_of_the_distribution_by_default(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    """A commit made in the tree without further ado does not carry the committer's own address."""
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\tname = Private\n\temail = private@invalid\n")
    (demo.tree / "b.txt").write_bytes(b"changed\n")
    env = {"GIT_CONFIG_GLOBAL": str(config), "PATH": "/usr/bin:/bin"}
    subprocess.run(["git", "commit", "-qam", "Mine"], cwd=demo.tree, env=env, check=True)
    tool.ok(demo, "export")
    text = (demo.patches / "mine.patch").read_text()
    assert "private@invalid" not in text
    assert "Author:" not in text


def test_patch_that_the_series_does_not_list(demo: Demo, tool: Tool) -> None:
    write(demo.patches / "wip.patch", b"mine\n")
    write(demo.patches / "notes.txt", b"mine too\n")
    refuses(demo, tool, "wip.patch")
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Another", "another")
    refuses(demo, tool, "wip.patch")
    (demo.patches / "wip.patch").unlink()
    tool.ok(demo, "export")
    assert (demo.patches / "notes.txt").exists()


BREAKS = {
    "no HEAD": lambda folder: (folder / "HEAD").write_bytes(b""),
    "HEAD of nothing": lambda folder: (folder / "HEAD").write_bytes(b"x" * 50),
    "no branch": lambda folder: (folder / "refs/heads/main").unlink(),
    "broken index": lambda folder: (folder / "index").write_bytes(b"x"),
    "broken record": lambda folder: (folder / "frontier.json").write_bytes(b"{"),
    "no record": lambda folder: (folder / "frontier.json").unlink(),
}


@pytest.mark.parametrize("kind", list(BREAKS))
def test_damaged_tree_has_a_way_out(kind: str, demo: Demo, tool: Tool) -> None:
    """Both verbs name the same way, it works, and the commits that were in the tree are still there to take."""
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Mine", "mine")
    commit = git(demo.tree, "rev-parse", "HEAD")
    BREAKS[kind](demo.tree / ".git")
    aside = demo.tree.with_name("demo.aside")
    way = f"`mv {demo.tree} {aside}`, run `python -m scripts trees`"
    refuses(demo, tool, way)
    assert way in tool.refused(demo, "trees", code=6)
    shutil.move(demo.tree, aside)
    tool.ok(demo, "trees")
    if "HEAD" not in kind and kind != "no branch":
        git(demo.tree, "fetch", "-q", str(aside), "main")
        git(demo.tree, "cherry-pick", commit)
        assert "patches/demo/mine.patch" in tool.ok(demo, "export")


def test_all_upstreams_or_none(demo: Demo, tool: Tool) -> None:
    """With two trees, one of them dirty, the other is not exported either."""
    lock = demo.root / "upstream.lock"
    text = lock.read_text()
    table = text[text.index("[upstream.demo]") :].partition("[upstream.demo.files]")[0]
    empty = "".join(line + "\n" for line in table.splitlines())
    for key in ("base-tree", "patched-tree", "digest"):
        empty = "".join(f'{key} = ""\n' if line.startswith(key) else line + "\n" for line in empty.splitlines())
    other = empty.replace("[upstream.demo]", "[upstream.other]") + "[upstream.other.files]\n"
    lock.write_text(f"{text}\n{other}")
    write(demo.root / "patches/other/series", b"")
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    demo.change(demo.edit("b.txt", b"one\n", b"1\n"), "Mine", "mine")
    write(demo.root / "build/trees/other/b.txt", b"dirty\n")
    head = git(demo.tree, "rev-parse", "HEAD")
    refuses(demo, tool, "b.txt")
    assert git(demo.tree, "rev-parse", "HEAD") == head
    assert "mine.patch" in tool.ok(demo, "export", "demo")


def test_removed_line_of_the_series_names_what_works(demo: Demo, tool: Tool) -> None:
    """Patches of one file are pinned to each other: dropping the first is for git, as the message says."""
    path, series = demo.patches / "five.patch", demo.patches / "series"
    kept, listed = path.read_bytes(), series.read_bytes()
    path.unlink()
    series.write_text("twenty.patch\nlog.patch\n")
    error = tool.refused(demo, "trees")
    assert "git rebase -i refs/frontier/base" in error
    assert "`export`" in error
    path.write_bytes(kept)
    series.write_bytes(listed)
    env = {"GIT_SEQUENCE_EDITOR": "sed -i 1d", "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["git", "rebase", "-q", "-i", "refs/frontier/base"], cwd=demo.tree, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "patches/demo/five.patch" in tool.ok(demo, "export").splitlines()
    assert series.read_text() == "twenty.patch\nlog.patch\n"
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")
