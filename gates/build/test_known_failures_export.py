# SPDX-License-Identifier: Apache-2.0
"""Known failures of patch-queue tools, P13 to P16 and P19: export, kills, configuration.

P17 and P18, about wheels and image, are in test_wheels and test_image_check.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gates.build.demo import FILES, Tool, git, write
from gates.build.known_failures import Cases, Maker, must_fail_weakened, registry, touch_series

CASES: Cases = {}
case = registry(CASES)

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
    ("export.py", "    if on_disk != result.digests:", "    if False:"),
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
    with disk.written("the tree","""


@case(("worktree.py", '    with disk.written("the tree",', _IN_PLACE))
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
    must_fail_weakened(CASES, name, demo_maker, tmp_path)
