# SPDX-License-Identifier: Apache-2.0
"""Known failures of patch-queue tools, P1 to P12: applying, file kinds, rebasing. P11 is in test_tampering."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gates.build.demo import Tool, git, write
from gates.build.known_failures import Cases, Maker, must_fail_weakened, registry, touch_series

CASES: Cases = {}
case = registry(CASES)

_GIT_APPLY = """\
    import subprocess
    from pathlib import Path
    folder = Path(where.split("/patches/")[0]) / "build" / "nested"
    folder.mkdir(parents=True, exist_ok=True)
    changes = {}
    for change in patch.changes:
        (folder / change.path.decode()).parent.mkdir(parents=True, exist_ok=True)
        (folder / change.path.decode()).write_bytes(state.content(change.path))
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=patch.data, cwd=folder, check=True)
    for change in patch.changes:
        data = (folder / change.path.decode()).read_bytes()
        state.put(change.path, change.new_mode, data)
        changes[change.path] = (change.new_mode, data)
    return Commit(to_message(patch.header, patch.name), AUTHOR, patch.header.get("Last-Update"), changes)
    changes: dict[bytes, tuple[str, bytes] | None] = {}
"""


@case(
    (
        "applying.py",
        "    changes: dict[bytes, tuple[str, bytes] | None] = {}\n    for change in patch",
        _GIT_APPLY + "    for change in patch",
    )
)
def p01_apply_inside_a_checkout(maker: Maker, tool: Tool) -> None:
    """`git apply` in a folder of an enclosing repository returns 0 and changes nothing."""
    demo = maker()
    git(demo.folder, "init", "-q")
    tool.ok(demo, "trees", "--force")
    (demo.patches / "series").write_text("five.patch\n")
    tool.ok(demo, "trees")
    assert b"hook 5\n" in (demo.tree / "a.txt").read_bytes()
    assert b"line twenty" not in (demo.tree / "a.txt").read_bytes()


_FUZZY = """\
    result = old
    for hunk in change.hunks:
        gone, new = b"".join(hunk.old), b"".join(hunk.new)
        at = hunk.index if not gone else None
        lines = split_lines(result)
        result = result.replace(gone, new, 1) if gone else b"".join([*lines[:at], new, *lines[at:]])
    return result
"""


_PRE_IMAGE = '    if change.old_id not in ("", NULL_ID) and'


@case(
    ("diff.py", _PRE_IMAGE, _FUZZY + _PRE_IMAGE),
    (
        "applying.py",
        "    mode = state.entries[change.path][0]\n    if mode",
        "    mode = state.entries[change.path][0]\n    if False and mode",
    ),
)
def p02_no_fuzz(maker: Maker, tool: Tool) -> None:
    """A hunk at another line, other text, or another pre-image is refused."""
    demo = maker()
    path = demo.patches / "twenty.patch"
    good = path.read_bytes()
    for old, new in (
        (b"@@ -21 +21 @@", b"@@ -22 +22 @@"),
        (b"-line 20\n", b"-line 21\n"),
        (b"@@ -21 +21 @@", b"@@ -21 +22 @@"),
    ):
        target = good.replace(b"@@ -20 +21 @@", b"@@ -21 +21 @@")
        assert old in target, good
        path.write_bytes(target.replace(old, new))
        assert "twenty" in tool.refused(demo, "trees")
    path.write_bytes(good)
    (demo.patches / "series").write_text("twenty.patch\nlog.patch\n")
    assert "the patch was made for" in tool.refused(demo, "trees")


@case(
    (
        "stack.py",
        '    if b"\\r\\n" in data.partition',
        '    data = data.replace(b"\\r\\n", b"\\n")\n    if b"\\r\\n" in data.partition',
    )
)
def p03_line_ends(maker: Maker, tool: Tool) -> None:
    """CRLF content survives, under autocrlf as well; a patch file that was converted is refused by name."""
    demo = maker()
    config = demo.folder / "gitconfig"
    config.write_text("[core]\n\tautocrlf = true\n\teol = crlf\n")
    demo.env["GIT_CONFIG_GLOBAL"] = str(config)
    demo.change(demo.edit("crlf.txt", b"two\r\n", b"two\r\n2.5\r\nbare lf\n"), "Touch CRLF", "crlf")
    tool.ok(demo, "export")
    tool.ok(demo, "trees", "--force")
    before = demo.files()
    (demo.patches / "series").write_text((demo.patches / "series").read_text() + "\n")
    tool.ok(demo, "trees")
    assert demo.files() == before
    assert (demo.tree / "crlf.txt").read_bytes() == b"one\r\ntwo\r\n2.5\r\nbare lf\nthree\r\n"
    path = demo.patches / "five.patch"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert "CRLF" in tool.refused(demo, "trees")


@case(
    (
        "exporting.py",
        "        changes = diff.parse(text, from_git=True)",
        '        changes = diff.parse(text.decode("utf-8", "replace").encode(), from_git=True)',
    )
)
def p04_bytes_that_are_no_text(maker: Maker, tool: Tool) -> None:
    """NUL and invalid UTF-8 go through export and apply byte for byte."""
    demo = maker()
    edits = {
        "nul.bin": b"a\0b\nnew\0\xff\nc\0d\n",
        "latin1.txt": b"caf\xe9\nna\xefve\nth\xe9\n",
        "own/bin": bytes(range(256)),
    }
    demo.change(edits, "Bytes", "bytes")
    tool.ok(demo, "export")
    assert b"GIT binary patch" not in (demo.patches / "bytes.patch").read_bytes()
    assert (demo.overlay / "own/bin").read_bytes() == bytes(range(256))
    touch_series(demo)
    tool.ok(demo, "trees")
    for name, content in edits.items():
        assert (demo.tree / name).read_bytes() == content


@case(("diff.py", "        elif change.old_mode != change.new_mode:", "        elif False:"))
def p05_file_mode(maker: Maker, tool: Tool) -> None:
    """An exec bit set or taken is kept, in patches and overlay."""
    demo = maker()
    (demo.tree / "b.txt").chmod(0o755)
    (demo.tree / "run.sh").chmod(0o644)
    demo.change({"own/tool.sh": b"#!/bin/sh\n"}, "Modes", "modes")
    (demo.tree / "own/tool.sh").chmod(0o755)
    demo.change({}, "Overlay mode")
    tool.ok(demo, "export")
    assert os.access(demo.overlay / "own/tool.sh", os.X_OK)
    touch_series(demo)
    tool.ok(demo, "trees")
    modes = {name: bool((demo.tree / name).stat().st_mode & 0o100) for name in ("b.txt", "run.sh", "own/tool.sh")}
    assert modes == {"b.txt": True, "run.sh": False, "own/tool.sh": True}


@case(("paths.py", '    if target.startswith(b"/"):\n        return True', "    return False"))
def p06_symlink(maker: Maker, tool: Tool) -> None:
    """A link is kept as a link; one that leaves the tree is refused, in overlay and in patches."""
    demo = maker()
    (demo.tree / "own/link").symlink_to("../a.txt")
    (demo.tree / "link").unlink()
    (demo.tree / "link").symlink_to("b.txt")
    demo.change({}, "Links", "links")
    tool.ok(demo, "export")
    assert os.readlink(demo.overlay / "own/link") == "../a.txt"
    touch_series(demo)
    tool.ok(demo, "trees")
    assert os.readlink(demo.tree / "link") == "b.txt"
    for target in ("../../etc", "/etc/passwd"):
        (demo.overlay / "own/bad").symlink_to(target)
        assert "points outside the tree" in tool.refused(demo, "trees")
        (demo.overlay / "own/bad").unlink()
    path = demo.patches / "links.patch"
    path.write_bytes(path.read_bytes().replace(b"+b.txt\n", b"+/etc/x\n"))
    assert tool.run(demo, "trees").code == 3


@case(
    ("applying.py", '            if self.entries.get(part, ("", ""))[0] == SUBMODULE:', "            if False:"),
    ("applying.py", "            if parent in self.entries:", "            if False:"),
)
def p07_submodule(maker: Maker, tool: Tool) -> None:
    """A path in a submodule is refused by name, in patches and overlay."""
    demo = maker()
    write(demo.overlay / "sub/inside.txt", b"lost\n")
    assert "submodule" in tool.refused(demo, "trees")
    (demo.overlay / "sub/inside.txt").unlink()
    (demo.overlay / "sub").rmdir()
    path = demo.patches / "log.patch"
    path.write_bytes(path.read_bytes().replace(b"pkg/mod.py", b"sub/mod.py"))
    message = tool.refused(demo, "trees")
    assert "submodule" in message
    assert "log" in message


@case(
    (
        "carrying.py",
        "        if change.new_mode is None:\n            return EMPTY\n        why = _where",
        "        return EMPTY\n        why = _where",
    )
)
def p08_upstream_deletes_a_patched_file(maker: Maker, tool: Tool) -> None:
    """The report names patch and file, and nothing is lost."""
    demo = maker()
    (demo.upstream / "pkg/mod.py").rename(demo.upstream / "demo/mod.py")
    commit = demo.commit_upstream("move")
    before = demo.snapshot()
    result = tool.run(demo, "rebase", "--upstream", "demo", "--to", commit)
    assert result.code == 5, result.err
    row = next(line for line in result.out.splitlines() if line.startswith("| log |"))
    assert "conflict" in row
    assert "pkg/mod.py" in row
    assert "demo/mod.py" in row, "where a file of that name is now"
    assert demo.snapshot() == before


_PARTIAL = """\
    commits = []
    for p in stack.patches:
        try:
            commits.append(apply_patch(state, p, where))
        except ToolError:
            pass
"""


@case(
    (
        "applying.py",
        '    commits = [apply_patch(state, p, f"{where}/patches/{stack.upstream}/{p.name}.patch")'
        " for p in stack.patches]\n",
        _PARTIAL,
    )
)
def p09_no_partial_application(maker: Maker, tool: Tool) -> None:
    """When a patch in the middle fails, tree and project are as at the start."""
    demo = maker()
    before, files = demo.snapshot(), demo.files()
    path = demo.patches / "twenty.patch"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"-line 20\n", b"-line 19\n"))
    assert "twenty" in tool.refused(demo, "trees")
    path.write_bytes(good)
    assert demo.snapshot() == before
    assert demo.files() == files
    left = [p.name for p in (demo.root / "build/trees").iterdir()]
    assert left == ["demo"], "no half-built tree stays behind"


@case(
    (
        "carrying.py",
        "    elif all(o == EMPTY for o in outcomes):\n        result.outcome = EMPTY",
        "    elif False:\n        pass",
    )
)
def p10_upstreamed_patch_is_empty(maker: Maker, tool: Tool) -> None:
    """A patch that upstream took is reported as empty and dropped, not as applied."""
    demo = maker()
    path = demo.upstream / "a.txt"
    path.write_bytes(path.read_bytes().replace(b"line 20\n", b"line twenty\n"))
    commit = demo.commit_upstream("took twenty")
    out = tool.ok(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept")
    assert "| twenty | empty |" in out
    assert (demo.patches / "series").read_text() == "five.patch\nlog.patch\n"
    assert not (demo.patches / "twenty.patch").exists()
    tool.ok(demo, "trees")
    tool.ok(demo, "verify")


@case(
    ("worktree.py", '    return hashlib.sha256(f"{base}\\n{stack.digest}\\n".encode()).hexdigest()', "    return base")
)
def p12_stale_stamp(maker: Maker, tool: Tool) -> None:
    """A patch taken out of the series, or an edited overlay file, rebuilds the tree."""
    demo = maker()
    assert "unchanged" in tool.ok(demo, "trees")
    (demo.patches / "series").write_text("five.patch\nlog.patch\n")
    assert "rebuilt" in tool.ok(demo, "trees")
    assert b"line 20\n" in (demo.tree / "a.txt").read_bytes()
    (demo.overlay / "own/deep/file.txt").write_bytes(b"else\n")
    tool.ok(demo, "trees")
    assert (demo.tree / "own/deep/file.txt").read_bytes() == b"else\n"


@pytest.mark.parametrize("name", list(CASES))
def test_holds(name: str, demo_maker: Maker, tool: Tool) -> None:
    CASES[name][0](demo_maker, tool)


@pytest.mark.parametrize("name", list(CASES))
def test_weakened_build_is_caught(name: str, demo_maker: Maker, tmp_path: Path) -> None:
    must_fail_weakened(CASES, name, demo_maker, tmp_path)
