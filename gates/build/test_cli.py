# SPDX-License-Identifier: Apache-2.0
"""The command line: exit codes, data on stdout, messages on stderr, status as numbers."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gates.build.demo import ROOT, Demo, Tool
from scripts.__main__ import VERBS


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help_and_a_module(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts", verb, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert VERBS[verb].split(";")[0][:20] in " ".join(done.stdout.split())
    assert (ROOT / "scripts" / f"{verb}.py").is_file()


def test_exit_codes_are_documented_and_usage_is_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for code in range(7):
        assert f"\n  {code}  " in done.stdout
    for words in ([], ["no-such-verb"], ["trees", "--no-such-option"], ["rebase", "--upstream", "x"]):
        done = subprocess.run(
            [sys.executable, "-m", "scripts", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert not done.stdout


def test_errors_say_what_where_and_next(demo: Demo, tool: Tool) -> None:
    (demo.patches / "five.patch").unlink()
    result = tool.run(demo, "trees")
    assert result.out == ""
    lines = result.err.rstrip("\n").split("\n")
    assert lines[0] == "error: patch `five` is in the series but not on disk"
    assert lines[1] == f"  where: {demo.patches / 'five.patch'}"
    assert lines[2] == "  next:  restore the file or remove its line from the series"


def on_terminal(demo: Demo, **env: str) -> bytes:
    """What a terminal sees of a failing run."""
    tool = Tool()
    master, slave = pty.openpty()
    environment = {k: v for k, v in tool.environment(demo).items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        tool.command(demo, "trees", "absent"),
        cwd=ROOT,
        env={**environment, "TERM": "xterm", **env},
        stderr=slave,
        stdout=subprocess.DEVNULL,
    )
    process.wait(60)
    os.close(slave)
    text = os.read(master, 4096)
    os.close(master)
    return text


def test_colour_only_where_it_is_wanted(demo: Demo, tool: Tool) -> None:
    assert b"\x1b[31merror" in on_terminal(demo)
    assert b"\x1b" not in on_terminal(demo, NO_COLOR="1")
    assert b"\x1b" not in on_terminal(demo, TERM="dumb")
    done = subprocess.run(
        tool.command(demo, "trees", "absent"),
        cwd=ROOT,
        env={**tool.environment(demo), "TERM": "xterm"},
        capture_output=True,
        check=False,
    )
    assert b"\x1b" not in done.stderr


def test_status_counts(demo: Demo, tool: Tool) -> None:
    path = demo.patches / "log.patch"
    path.write_text(path.read_text().replace("Forwarded: no", "Forwarded: https://example.org/1"))
    report = json.loads(tool.ok(demo, "status", "--json"))["upstreams"]["demo"]
    assert report["patches"] == 3
    assert report["forwarded"] == {"no": 2, "sent": 1}
    assert report["hook_lines"] == {
        "a.txt": {"added": 2, "removed": 1, "patches": 2},
        "pkg/mod.py": {"added": 1, "removed": 0, "patches": 1},
    }
    assert report["overlay_files"] == 2
    assert report["overlay_lines"] == 3
    assert set(report["age_days"]) == {"five", "twenty", "log"}
    assert all(days >= 0 for days in report["age_days"].values())
    text = tool.ok(demo, "status")
    assert "forwarded: 2 no, 1 sent" in text
    assert "+2   -1   a.txt (2 patches)" in text


def test_tree_log_shows_the_stack(demo: Demo, tool: Tool) -> None:
    log = subprocess.run(
        ["git", "-C", str(demo.tree), "log", "--format=%s"], capture_output=True, text=True, check=True
    ).stdout
    assert log.splitlines() == ["Overlay", "Log in f", "Change twenty", "Insert after five", "demo 1.0 as published"]


def test_trees_are_the_same_everywhere(demo: Demo, tool: Tool, tmp_path: Path) -> None:
    """Commit ids depend on no clock, user or folder."""
    head = subprocess.run(["git", "-C", str(demo.tree), "rev-parse", "HEAD"], capture_output=True, check=True).stdout
    moved = Demo(tmp_path / "elsewhere")
    shutil.copytree(demo.folder, moved.folder, symlinks=True, ignore=shutil.ignore_patterns("build"))
    moved.env.update(GIT_AUTHOR_DATE="2001-01-01T00:00:00Z", GIT_COMMITTER_NAME="other", TZ="Asia/Tokyo")
    tool.ok(moved, "trees")
    again = subprocess.run(["git", "-C", str(moved.tree), "rev-parse", "HEAD"], capture_output=True, check=True).stdout
    assert again == head
