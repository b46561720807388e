# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random points of fetch, apply, export and rebase: old state or new state, and the next run succeeds."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git, weakened, write
from gates.build.sdists import make_sdist_demo
from scripts import git as scripts_git

POINTS = 10
SEED = 20261129


def duration(demo: Demo, tool: Tool, *words: str) -> float:
    """Seconds one whole run takes in a process of its own."""
    start = time.monotonic()
    subprocess.run(
        tool.command(demo, *words), cwd=tool.folder, env=tool.environment(demo), check=True, capture_output=True
    )
    return time.monotonic() - start


def run_and_kill(demo: Demo, tool: Tool, after: float, *words: str) -> bool:
    """Start a run and kill its whole process group after some seconds; returns whether it was still alive."""
    process = subprocess.Popen(
        tool.command(demo, *words),
        cwd=tool.folder,
        env=tool.environment(demo),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(after)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


class Kills:
    """Kills at `POINTS` moments of a run, more of them late, where the writing is.

    A run that ended before its kill makes the later kills earlier: how long one takes varies with what else runs.
    """

    def __init__(self, whole: float) -> None:
        self._whole = whole
        self._chance = random.Random(SEED)
        self.count = 0

    def run(self, demo: Demo, tool: Tool, *words: str) -> None:
        """Start a run and kill it, unless it ends first."""
        if run_and_kill(demo, tool, self._whole * (0.15 + 0.95 * self._chance.random() ** 0.7), *words):
            self.count += 1
        else:
            self._whole *= 0.7


def test_fetch(tmp_path: Path, tool: Tool) -> None:
    extra = {f"demo/m{n}.py": os.urandom(2000) for n in range(200)}
    demo, _ = make_sdist_demo(tmp_path, extra=extra)
    whole = duration(demo, tool, "fetch")
    shutil.rmtree(demo.cache, ignore_errors=True)
    whole = min(whole, duration(demo, tool, "fetch"))  # the first run may also have compiled the tool
    kills = Kills(whole)
    for _ in range(POINTS):
        shutil.rmtree(demo.cache, ignore_errors=True)
        kills.run(demo, tool, "fetch")
        for entry in (demo.cache / "base").glob("*.git") if (demo.cache / "base").exists() else []:
            git(entry, "fsck", "--full")
            git(entry, "rev-parse", "--verify", "refs/heads/base^{tree}")
        tool.ok(demo, "fetch")
        tool.ok(demo, "lock")
    assert kills.count >= 3, "most runs were killed while at work"


def test_trees(demo: Demo, tool: Tool) -> None:
    files = demo.files()
    series = (demo.patches / "series").read_text()
    kills = Kills(duration(demo, tool, "trees", "--force"))
    for number in range(POINTS):
        (demo.patches / "series").write_text(f"# {number}\n{series}")
        kills.run(demo, tool, "trees")
        assert demo.files() == files, "the tree is whole, the old one or the new one"
        tool.ok(demo, "trees")
        assert demo.files() == files
    assert kills.count >= 3


def test_export(demo: Demo, tool: Tool) -> None:
    """After any kill: all files old or, once the next run has begun, all files new."""
    whole = duration(demo, tool, "export") * 1.3
    kills = Kills(whole)
    for number in range(POINTS):
        old = demo.snapshot()
        word = f"hook round {number}\n".encode()
        demo.change(
            {**demo.edit("b.txt", b"three\n", word + b"three\n"), "own/round.txt": word, f"own/r{number}.txt": word},
            f"Round {number}",
        )
        kills.run(demo, tool, "export")
        tool.run(demo, "status")  # any verb finishes what was committed before the kill
        assert demo.snapshot() == old or f"round-{number}.patch" in (demo.patches / "series").read_text()
        if demo.snapshot() != old:
            assert (demo.overlay / f"own/r{number}.txt").read_bytes() == word
        tool.ok(demo, "export")
        assert (demo.patches / f"round-{number}.patch").exists()
        assert "unchanged" in tool.ok(demo, "trees")
    assert kills.count >= 3
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


def test_rebase(demo: Demo, tool: Tool, demo_maker: Callable[..., Demo]) -> None:
    """After any kill: either everything is at the old base or everything at the new one."""
    spare = demo_maker()
    text = (spare.upstream / "a.txt").read_bytes()
    (spare.upstream / "a.txt").write_bytes(b"line 0\n" + text)
    spare.commit_upstream("next")
    whole = duration(spare, tool, "rebase", "--upstream", "demo", "--to", "main", "--accept")
    kills = Kills(whole)
    for number in range(POINTS):
        old = demo.snapshot()
        content = (demo.upstream / "a.txt").read_bytes()
        (demo.upstream / "a.txt").write_bytes(b"round %d\n" % number + content)
        commit = demo.commit_upstream(f"round {number}")
        kills.run(demo, tool, "rebase", "--upstream", "demo", "--to", commit, "--accept")
        tool.run(demo, "status")
        now = demo.snapshot()
        if now != old:
            assert commit in (demo.root / "upstream.lock").read_text()
            tool.ok(demo, "lock", "--check")
        else:
            result = tool.run(demo, "rebase", "--upstream", "demo", "--to", commit, "--accept")
            if result.code == 6:
                assert "under way" in result.err
                tool.ok(demo, "rebase", "--upstream", "demo", "--continue")
            else:
                assert result.code == 0, result.err
        tool.ok(demo, "trees")
    assert kills.count >= 3
    tool.ok(demo, "verify")


def test_journal_is_carried_out(demo: Demo, tmp_path: Path, tool: Tool) -> None:
    """A run that dies between two replaced files is finished by the next one; without recovery it would not be."""
    crash = (
        "transaction.py",
        "            _move(staged, target)\n",
        "            _move(staged, target)\n            os.kill(os.getpid(), 9)\n",
    )
    demo.change({**demo.edit("b.txt", b"two\n", b"2\n"), "own/x.txt": b"x\n"}, "Two files")
    dying = weakened(tmp_path / "dying", crash)
    assert dying.run(demo, "export").code == -signal.SIGKILL
    assert (demo.patches / "two-files.patch").exists()
    assert not (demo.overlay / "own/x.txt").exists(), "stopped half way"
    forgetful = weakened(tmp_path / "forgetful", ("transaction.py", "    if pending.exists():\n", "    if False:\n"))
    forgetful.run(demo, "status")
    assert not (demo.overlay / "own/x.txt").exists(), "control: without recovery the half stays"
    tool.run(demo, "status")
    assert (demo.overlay / "own/x.txt").read_bytes() == b"x\n"
    assert "two-files.patch" in (demo.patches / "series").read_text()
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


@pytest.mark.parametrize("verb", ["trees", "export"])
def test_two_runs_at_once(demo: Demo, tool: Tool, verb: str) -> None:
    (demo.patches / "series").write_text("# x\n" + (demo.patches / "series").read_text())
    if verb == "export":
        tool.ok(demo, "trees")
        demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "New")
    runs = [
        subprocess.Popen(
            tool.command(demo, verb),
            cwd=tool.folder,
            env=tool.environment(demo),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")


def test_what_a_killed_run_had_staged_goes(demo: Demo, tool: Tool) -> None:
    """Of a run before its commit nothing is left; that of a run under way is not touched."""
    dead, alive = (demo.root / f"build/.stage-{name}" for name in ("dead", "alive"))
    for folder in (dead, alive):
        write(folder / "0", b"x")
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    demo.change({"own/more.txt": b"x\n"}, "More")
    tool.ok(demo, "export")
    assert [p.name for p in (demo.root / "build").glob(".stage-*")] == [alive.name]
    os.close(handle)
    demo.change({"own/more.txt": b"y\n"}, "More")
    tool.ok(demo, "export")
    assert not list((demo.root / "build").glob(".stage-*"))


@pytest.mark.parametrize(("verb", "outlives"), [("update-ref", True), ("log", False)])
def test_a_moving_branch_outlives_a_kill_of_the_group(
    verb: str, outlives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git that is killed between its lock and its rename leaves HEAD.lock behind, and the next run stops there."""
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\ncut -d' ' -f5 /proc/$$/stat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert (int(scripts_git.run(None, verb)) != os.getpgrp()) == outlives
