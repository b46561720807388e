# SPDX-License-Identifier: Apache-2.0
"""Configuration that git finds where the tool does not look: in the tree itself, and in a home older gits insist on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, weakened
from gates.build.known_failures import touch_series

# Each either runs {run}, or changes what a listing, a diff or a checkout looks like.
SETTINGS = """
core.autocrlf true; core.hooksPath {folder}/hooks; core.fsmonitor {run}; core.attributesFile {folder}/attributes
core.excludesFile {folder}/attributes; core.quotePath false; core.sparseCheckout true; core.bigFileThreshold 1
core.worktree /nonexistent; core.bare true; core.untrackedCache true; core.splitIndex true; core.abbrev 5
core.pager {run}; core.alternateRefsCommand {run}; core.sshCommand {run}; commit.gpgSign true; gpg.program {run}
diff.external {run}; diff.orderFile /nonexistent; diff.noprefix true; diff.mnemonicPrefix true; diff.relative true
diff.ignoreSubmodules all; diff.python.textconv rev; diff.python.command {run}; filter.bad.clean {run}
filter.bad.smudge {run}; filter.bad.required true; log.showSignature true; log.date relative; format.pretty oneline
status.showUntrackedFiles no; status.submoduleSummary true; color.ui always; i18n.logOutputEncoding ISO-8859-1
submodule.recurse true; uploadpack.packObjectsHook {run}
"""


def hostile_folder(demo: Demo) -> Path:
    """Hooks, attributes and a program that leave the mark `ran` when they are run."""
    folder = demo.folder / "evil"
    (folder / "hooks").mkdir(parents=True)
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder}/ran\nexit 1\n")
    program.chmod(0o755)
    for name in ("pre-commit", "post-commit", "post-checkout", "post-index-change", "reference-transaction"):
        shutil.copy(program, folder / "hooks" / name)
    (folder / "attributes").write_text("* filter=bad diff=python\n")
    return folder


def configure(demo: Demo) -> Path:
    """Put every setting into the tree's own configuration, as a user may."""
    folder = hostile_folder(demo)
    lines = []
    for setting in SETTINGS.replace("\n", ";").split(";"):
        if setting.strip():
            key, value = setting.split()
            section, _, name = key.rpartition(".")
            kind, _, sub = section.partition(".")
            quoted = f' "{sub}"' if sub else ""
            lines.append(f"[{kind}{quoted}]\n\t{name} = {value.format(folder=folder, run=folder / 'program')}\n")
    with (demo.tree / ".git/config").open("a") as handle:
        handle.write("".join(lines))
    (demo.tree / ".git/info/exclude").write_text("*\n")
    (demo.tree / ".git/info/sparse-checkout").write_text("/b.txt\n")
    return folder


def check(demo: Demo, tool: Tool) -> None:
    """Every verb that reads the tree says the same as before, and nothing was run."""
    shown = Tool().ok(demo, "show", "log")
    before, files = demo.snapshot(), demo.files()
    folder = configure(demo)
    assert tool.ok(demo, "show", "log") == shown
    for words in (["verify"], ["export"], ["trees"], ["lock", "--check"]):
        tool.ok(demo, *words)
    assert demo.snapshot() == before
    touch_series(demo)
    tool.ok(demo, "trees")
    assert demo.files() == files
    assert not (folder / "ran").exists()


def test_settings_of_the_tree_change_nothing(demo: Demo, tool: Tool) -> None:
    check(demo, tool)


@pytest.mark.parametrize(
    "edit",
    [
        ("git.py", '    "diff.orderFile=/dev/null",\n', ""),
        ("git.py", '    "core.bigFileThreshold=512m",\n', ""),
        ("git.py", '    "core.fsmonitor=false",\n', ""),
        ("git.py", '    "diff.noprefix=false",\n', ""),
        ("show.py", '        "--no-textconv",\n', ""),
    ],
    ids=lambda edit: edit[1].strip().strip('",'),
)
def test_control_a_setting_let_through_is_caught(demo: Demo, tmp_path: Path, edit: tuple[str, str, str]) -> None:
    with pytest.raises(AssertionError):
        check(demo, weakened(tmp_path / "weak", edit))


def old_git(demo: Demo) -> None:
    """A git that knows no GIT_CONFIG_GLOBAL, as before 2.32, and a home whose configuration is none."""
    (demo.folder / "bin").mkdir()
    wrapper = demo.folder / "bin/git"
    wrapper.write_text(f'#!/bin/sh\nunset GIT_CONFIG_GLOBAL\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    (demo.folder / ".gitconfig").write_text("[broken\n")
    demo.env.update(PATH=f"{demo.folder / 'bin'}:{os.environ['PATH']}", HOME=str(demo.folder), XDG_CONFIG_HOME="")


def test_a_git_that_reads_the_home_whatever_it_is_told(demo: Demo, tool: Tool) -> None:
    before = demo.snapshot()
    old_git(demo)
    for words in (["trees", "--force"], ["export"], ["verify"], ["show", "five"]):
        tool.ok(demo, *words)
    assert demo.snapshot() == before


def test_control_a_home_let_through_is_caught(demo: Demo, tmp_path: Path) -> None:
    weak = weakened(
        tmp_path / "weak", ("git.py", "        env.update(HOME=os.devnull, XDG_CONFIG_HOME=os.devnull)", "        #")
    )
    old_git(demo)
    with pytest.raises(AssertionError):
        weak.ok(demo, "verify")
