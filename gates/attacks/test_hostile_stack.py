# SPDX-License-Identifier: Apache-2.0
"""Hostile locks, series, patches and overlays: refused by name, nothing written outside, nothing executed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, write
from scripts.git import blob_id

EVIL = "evil-was-here"


def untouched(demo: Demo) -> None:
    """Nothing of the attack left a trace anywhere in the demo's folder or in the folder above it."""
    found = [p for p in demo.folder.parent.rglob(f"*{EVIL}*") if "attack" not in p.parts]
    assert not found, found


def relock(demo: Demo, old: str, new: str) -> None:
    path = demo.root / "upstream.lock"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    shutil.rmtree(demo.cache, ignore_errors=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("address", "--upload-pack=touch " + EVIL),
        ("address", "ext::sh -c touch% " + EVIL),
        ("address", "ext::touch"),
        ("address", "-x"),
        ("ref", "--upload-pack=touch " + EVIL),
        ("ref", "../../x"),
        ("version", "1.0; touch " + EVIL),
        ("version", "../../../x"),
    ],
)
def test_lock_values_that_would_become_options_or_commands(bare: Demo, tool: Tool, key: str, value: str) -> None:
    current = {"address": str(bare.upstream), "ref": "main", "version": "1.0"}[key]
    relock(bare, f'{key} = "{current}"', f'{key} = "{value}"')
    error = tool.refused(bare, "fetch")
    assert f"upstream.demo.{key}" in error
    untouched(bare)


@pytest.mark.parametrize("name", ['"../../x"', '"a b"', '"-x"', '""', '"A"', '"a/b"'])
def test_upstream_names_that_would_be_paths(bare: Demo, tool: Tool, name: str) -> None:
    relock(bare, "[upstream.demo]", f"[upstream.{name}]")
    path = bare.root / "upstream.lock"
    path.write_text(path.read_text().replace("[upstream.demo.files]\n", ""))
    assert "lower case words" in tool.refused(bare, "fetch")


@pytest.mark.parametrize(
    "address",
    ["demo==1.0\\n--index-url http://localhost:1/", "demo==1.0 --pre", "-r /etc/passwd", "demo", "demo @ file:///x"],
)
def test_requirement_that_carries_pip_options(bare: Demo, tool: Tool, address: str) -> None:
    relock(bare, 'kind = "git"', 'kind = "sdist"')
    relock(bare, f'address = "{bare.upstream}"', f'address = "{address}"')
    relock(bare, "commit = ", 'sha256 = "' + "0" * 64 + '" # ')
    assert "upstream.demo.address" in tool.refused(bare, "fetch")


@pytest.mark.parametrize(
    "target",
    [
        "../outside.txt",
        "a/../../outside.txt",
        "/tmp/outside.txt",
        ".git/hooks/post-checkout",
        "x/.Git/config",
        "a//b",
        "./a",
    ],
)
def test_patch_paths(demo: Demo, tool: Tool, target: str) -> None:
    text = (
        f"Subject: x\n\ndiff --git a/{target} b/{target}\nnew file mode 100755\nindex {'0' * 40}..{'1' * 40}\n"
        f"--- /dev/null\n+++ b/{target}\n@@ -0,0 +1 @@\n+touch {EVIL}\n"
    )
    (demo.patches / "evil.patch").write_text(text)
    (demo.patches / "series").write_text("evil.patch\n")
    before = demo.files()
    tool.refused(demo, "trees")
    assert "path" in tool.refused(demo, "lint", code=1)
    assert demo.files() == before
    untouched(demo)


@pytest.mark.parametrize("target", ["x\\000y", ".git\\000x/hooks/evil", "..\\000/out"])
def test_patch_paths_that_git_would_cut(demo: Demo, tool: Tool, target: str) -> None:
    head = (demo.patches / "five.patch").read_text().partition("\n\n")[0]
    (demo.patches / "evil.patch").write_text(
        f'{head}\n\ndiff --git "a/{target}" "b/{target}"\nnew file mode 100644\n'
        f'index {"0" * 40}..{blob_id(b"x" + bytes([10]))}\n--- /dev/null\n+++ "b/{target}"\n@@ -0,0 +1 @@\n+x\n'
    )
    (demo.patches / "series").write_text("evil.patch\n")
    before = demo.files()
    assert "holds a NUL" in tool.refused(demo, "trees")
    assert "holds a NUL" in tool.refused(demo, "lint", code=1)
    assert demo.files() == before


@pytest.mark.parametrize(
    "line", ["../../evil.patch", "/etc/passwd.patch", "-x.patch", "a b.patch", "evil.patch; touch x", ".patch"]
)
def test_series_lines(demo: Demo, tool: Tool, line: str) -> None:
    write(demo.root / "evil.patch", b"x\n")
    (demo.patches / "series").write_text(line + "\n")
    assert "is no patch name" in tool.refused(demo, "trees")


def test_write_through_a_link(demo: Demo, tool: Tool) -> None:
    """A link laid by one file must not carry the next one out of the tree, nor one that upstream has."""
    outside = demo.folder / "attack"
    outside.mkdir()
    (demo.upstream / "dir_link").symlink_to(outside)
    lock = demo.root / "upstream.lock"
    commit = demo.commit_upstream("link to a folder")
    lock.write_text(lock.read_text().replace(lock.read_text().split('commit = "')[1][:40], commit))
    text = lock.read_text()
    lock.write_text(text.replace(text.split('base-tree = "')[1][:40], ""))
    write(demo.overlay / "dir_link/evil.txt", b"x\n")
    assert "is no folder in the tree" in tool.refused(demo, "trees")
    assert not list(outside.iterdir())


def test_overlay_with_special_files_and_git_folders(demo: Demo, tool: Tool) -> None:
    os.mkfifo(demo.overlay / "fifo")
    assert "not a file or link" in tool.refused(demo, "trees")
    (demo.overlay / "fifo").unlink()
    write(demo.overlay / "own/.git/config", b"[core]\n\tfsmonitor = touch " + EVIL.encode() + b"\n")
    assert "inside a .git folder" in tool.refused(demo, "trees")
    untouched(demo)


def test_overlay_that_is_a_link_to_elsewhere(demo: Demo, tool: Tool) -> None:
    (demo.overlay / "secret").symlink_to("/etc")
    assert "points outside the tree" in tool.refused(demo, "trees")


def test_attributes_and_hooks_of_upstream_run_nothing(bare: Demo, tool: Tool, tmp_path: Path) -> None:
    """A filter named in upstream's .gitattributes and configured by the user is not run at checkout."""
    attributes = bare.upstream / ".gitattributes"
    attributes.write_bytes(b"*.txt filter=evil\n")
    commit = bare.commit_upstream("filter")
    lock = bare.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(lock.read_text().split('commit = "')[1][:40], commit))
    config = tmp_path / "gitconfig"
    marker = tmp_path / EVIL
    config.write_text(f'[filter "evil"]\n\tsmudge = touch {marker}\n\tclean = touch {marker}\n\trequired = true\n')
    bare.env["GIT_CONFIG_GLOBAL"] = str(config)
    tool.ok(bare, "lock")
    tool.ok(bare, "trees")
    tool.ok(bare, "export")
    assert not marker.exists()


def test_huge_numbers_in_a_hunk(demo: Demo, tool: Tool) -> None:
    path = demo.patches / "five.patch"
    good = path.read_bytes()
    for bad in (
        b"@@ -99999999999999999999,0 +6 @@",
        b"@@ -5,0 +6,99999999999 @@",
        b"@@ -5,0 +99999999999 @@",
        b"@@ -5,99999 +6 @@",
    ):
        path.write_bytes(good.replace(b"@@ -5,0 +6 @@", bad))
        assert "five" in tool.refused(demo, "trees")


def test_replaced_objects_are_not_followed(demo: Demo, tool: Tool) -> None:
    """`git replace` in the tree does not change what export reads."""
    before = demo.snapshot()
    blob = git(demo.tree, "rev-parse", "HEAD:a.txt")
    other = git(demo.tree, "hash-object", "-w", "--stdin", stdin=b"evil\n")
    git(demo.tree, "replace", blob, other)
    tool.run(demo, "export")
    assert demo.snapshot() == before
