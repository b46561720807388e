# SPDX-License-Identifier: Apache-2.0
"""Known failures of patch-queue tools, each tried on ours: P1 to P16 and P19 of the project's survey.

Every scenario runs twice: on the tool, where it must hold, and on a build in which the code that prevents the failure
was taken out, where it must not. P17 and P18 are about wheels and image.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import FILES, Demo, Tool, git, weakened, write

Maker = Callable[..., Demo]
Edit = tuple[str, str, str]
CASES: dict[str, tuple[Callable[[Maker, Tool], None], tuple[Edit, ...]]] = {}


def case(*edits: Edit) -> Callable[[Callable[[Maker, Tool], None]], Callable[[Maker, Tool], None]]:
    """Register a scenario with the edits that make a build in which it must fail."""

    def register(scenario: Callable[[Maker, Tool], None]) -> Callable[[Maker, Tool], None]:
        CASES[scenario.__name__] = (scenario, edits)
        return scenario

    return register


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


@case(
    ("diff.py", "    if change.old_id != NULL_ID and", _FUZZY + "    if change.old_id != NULL_ID and"),
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
        "        changes = diff.parse(text, headings=True)",
        '        changes = diff.parse(text.decode("utf-8", "replace").encode(), headings=True)',
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


def touch_series(demo: Demo) -> None:
    """Change the series without changing its meaning, so that the next `trees` rebuilds."""
    path = demo.patches / "series"
    path.write_text("# touched\n" + path.read_text())


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


ODD = [
    b"sp ace.txt",
    b'quo"te.txt',
    b"new\nline.txt",
    b"tab\t.txt",
    b"back\\slash.txt",
    b"lat\xe9.txt",
    "ü.txt".encode(),
    b"-dash.txt",
]


@case(("paths.py", '            out.append(f"\\\\{byte:03o}")', "            out.append(chr(byte))"))
def p13_odd_names(maker: Maker, tool: Tool) -> None:
    """Latin-1, space, quote, newline, tab, backslash in names: in upstream, in patches, in the overlay."""
    demo = maker("bare")
    for name in ODD:
        write(Path(os.fsdecode(os.path.join(os.fsencode(demo.upstream), b"odd", name))), b"one\ntwo\n")
    commit = demo.commit_upstream("odd names")
    lock = demo.root / "upstream.lock"
    text = lock.read_text()
    lock.write_text(text.replace(text.split('commit = "')[1][:40], commit))
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    demo.change({b"odd/" + n: b"one\nmore\ntwo\n" for n in ODD}, "Odd", "odd")
    demo.change({b"ours/" + n: b"ours\n" for n in ODD}, "Ours")
    tool.ok(demo, "export")
    before = demo.files()
    touch_series(demo)
    tool.ok(demo, "trees")
    assert demo.files() == before
    for name in ODD:
        assert before[b"odd/" + name].endswith(b"one\nmore\ntwo\n")
        assert before[b"ours/" + name].endswith(b"ours\n")
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")
    git(demo.tree, "checkout", "-q", "HEAD~2")
    git(demo.tree, "apply", "--unidiff-zero", str(demo.patches / "odd.patch"))  # git itself reads the same names


@case(("exporting.py", "        if name in patches:", "        if False:"))
def p14_same_subject(maker: Maker, tool: Tool) -> None:
    """Two commits that would write one file are refused, and nothing is written."""
    demo = maker()
    before = demo.snapshot()
    demo.change(demo.edit("b.txt", b"two\n", b"two\n2.5\n"), "One subject")
    demo.change(demo.edit("b.txt", b"three\n", b"three\n3.5\n"), "One subject")
    message = tool.refused(demo, "export", code=6)
    assert "one-subject.patch" in message
    assert demo.snapshot() == before
    git(demo.tree, "reset", "-q", "--hard", "HEAD~2")
    demo.change(demo.edit("b.txt", b"two\n", b"two\n2.5\n"), "Change twenty", "other")
    tool.ok(demo, "export")
    assert "subject-duplicate" in tool.refused(demo, "lint", code=1)


@case(
    ("export.py", "    if old and not patches:", "    if False:"),
    ("export.py", "    if present and not overlay:", "    if False:"),
    ("export.py", "    refuse_outside_edits(project, upstream, stamp, tree)\n    changed", "    changed"),
)
def p15_export_of_an_unpatched_tree(maker: Maker, tool: Tool) -> None:
    """Export on a tree without the stack refuses: it would delete every patch."""
    demo = maker()
    before = demo.snapshot()
    git(demo.tree, "reset", "-q", "--hard", "refs/frontier/base")
    message = tool.refused(demo, "export", code=6)
    assert "would delete 3 patches" in message
    assert demo.snapshot() == before


_IN_PLACE = """\
    scratch = final
    import time
    final.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(final)
    final.mkdir()
    if True:
        stamp = write_tree(scratch, cached, base, commits, wanted)
    return stamp, True
    final.parent.mkdir(parents=True, exist_ok=True)
"""


@case(("worktree.py", "    final.parent.mkdir(parents=True, exist_ok=True)\n", _IN_PLACE))
def p16_kill_during_apply(maker: Maker, tool: Tool) -> None:
    """kill -9 while a tree is built leaves the old tree whole, and the next run succeeds."""
    demo = maker()
    files = demo.files()
    touch_series(demo)
    for delay in (0.12, 0.16, 0.2, 0.24, 0.28):
        process = subprocess.Popen(
            tool.command(demo, "trees"),
            cwd=tool.folder,
            env=tool.environment(demo),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 30
        started = demo.root / "build/trees"
        stamp = demo.tree / ".git/frontier.json"
        while time.monotonic() < deadline and process.poll() is None:
            # Kill at the first sign of work: a half-built folder, or the old tree losing its record.
            if any(p.name != "demo" for p in started.iterdir()) or not stamp.exists():
                time.sleep(delay / 10)
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert demo.files() == files, "old tree whole"
        assert stamp.exists()
    tool.ok(demo, "trees")
    assert demo.files() == files
    assert [p.name for p in started.iterdir()] == ["demo"], "leftovers are cleared"


HOSTILE = """\
[diff]
	noprefix = true
	mnemonicPrefix = true
	renames = copies
	context = 9
	interHunkContext = 9
	algorithm = patience
	indentHeuristic = true
	external = /bin/false
	suppressBlankEmpty = true
	orderFile = /nonexistent
	submodule = log
	colorMoved = zebra
	relative = true
	wsErrorHighlight = all
[diff "python"]
	xfuncname = "^(.*)$"
	textconv = rev
	command = /bin/false
[color]
	ui = always
[core]
	abbrev = 7
	autocrlf = true
	eol = crlf
	quotePath = false
	attributesFile = {folder}/attributes
	excludesFile = {folder}/excludes
	hooksPath = {folder}/hooks
	fileMode = false
	symlinks = false
	ignoreCase = true
	pager = false
	commentChar = D
	fsmonitor = /bin/false
[format]
	signature = leaked
	pretty = oneline
[commit]
	gpgSign = true
	cleanup = strip
[log]
	showSignature = true
	date = relative
	follow = true
[user]
	name = Leaked Name
	email = leaked@invalid
[i18n]
	commitEncoding = ISO-8859-1
	logOutputEncoding = ISO-8859-1
[init]
	templateDir = {folder}/template
	defaultBranch = leaked
[apply]
	whitespace = error
[status]
	showUntrackedFiles = no
	relativePaths = true
[merge]
	conflictStyle = zdiff3
"""


@case(
    ("git.py", '        env = {k: v for k, v in env.items() if not k.startswith("GIT_")}\n', ""),
    ("exporting.py", '"--no-ext-diff", ', ""),
)
def p19_developer_configuration(maker: Maker, tool: Tool) -> None:
    """Under a hostile global configuration export changes no byte, and a rebuild gives the same commits."""
    demo = maker()
    folder = demo.folder / "hostile"
    (folder / "hooks").mkdir(parents=True)
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
        (folder / "hooks" / name).write_text(f"#!/bin/sh\ntouch {folder}/hook-ran\nexit 1\n")
        (folder / "hooks" / name).chmod(0o755)
    (folder / "attributes").write_text("* diff=python text eol=crlf ident filter=bad\n")
    (folder / "excludes").write_text("*\n")
    write(folder / "template/info/exclude", b"*\n")
    (folder / "gitconfig").write_text(HOSTILE.format(folder=folder))
    before, head = demo.snapshot(), git(demo.tree, "rev-parse", "HEAD")
    demo.env.update(
        GIT_CONFIG_GLOBAL=str(folder / "gitconfig"),
        GIT_EXTERNAL_DIFF="/bin/false",
        GIT_DIFF_OPTS="-u20",
        GIT_AUTHOR_NAME="Leaked",
        GIT_DIR="/nonexistent",
        GIT_INDEX_FILE="/nonexistent",
        LC_ALL="C.UTF-8",
        TZ="Pacific/Apia",
    )
    tool.ok(demo, "export")
    assert demo.snapshot() == before
    tool.ok(demo, "trees", "--force")
    touch_series(demo)
    tool.ok(demo, "trees")
    assert git(demo.tree, "rev-parse", "HEAD") == head
    tool.ok(demo, "export")
    assert not (folder / "hook-ran").exists()
    assert demo.files()[b"a.txt"].endswith(b"line 30\n"), "checked out as it is, not as attributes would have it"
    assert FILES["crlf.txt"] in demo.files()[b"crlf.txt"]


@pytest.mark.parametrize("name", list(CASES))
def test_holds(name: str, demo_maker: Maker, tool: Tool) -> None:
    CASES[name][0](demo_maker, tool)


@pytest.mark.parametrize("name", list(CASES))
def test_weakened_build_is_caught(name: str, demo_maker: Maker, tmp_path: Path) -> None:
    scenario, edits = CASES[name]
    with pytest.raises(AssertionError):
        scenario(demo_maker, weakened(tmp_path / "weak", *edits))
