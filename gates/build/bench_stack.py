# SPDX-License-Identifier: Apache-2.0
"""Benchmark of applying a stack: ours, `git am` of the same commits, `quilt push` of the same changes.

    python -m gates.build.bench_stack [--rounds N]

All contenders start in a checkout of the base and end in a checkout of the result; ours and `git am` also make the
commits. They take turns in every round, and only ratios within a round are compared: the machine may be busy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gates.build.demo import ROOT, git
from scripts import cache, lockfile, stack, worktree
from scripts import git as tool_git
from scripts.applying import Commit
from scripts.carrying import hunks_between
from scripts.diff import FileDiff, split_lines
from scripts.fetching import ensure_base
from scripts.git import blob_id
from scripts.header import Header
from scripts.paths import open_project
from scripts.stack import Patch, Stack, render_patch
from scripts.writing import write_commits

SYNTHETIC = 60
_NO_CONFIG = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
}


def synthetic(cached: Path, upstream: str) -> Stack:
    """60 patches of two inserted lines each over the base's Python files, several of them on one file."""
    entries = tool_git.ls_tree(cached, cache.BASE_REF)
    patches = []
    with tool_git.Objects(cached) as objects:
        paths = sorted(p for p, (mode, _) in entries.items() if p.endswith(b".py") and mode == "100644")
        contents = {p: objects.read(entries[p][1]) for p in paths}
    paths = [p for p in paths if contents[p].count(b"\n") > 40][:40]
    for number in range(SYNTHETIC):
        path = paths[number * 7 % len(paths)]
        old = contents[path]
        lines = split_lines(old)
        at = (number * 13) % (len(lines) - 2) + 1
        new = b"".join([*lines[:at], b"# hook %d\n# of a synthetic stack\n" % number, *lines[at:]])
        change = FileDiff(path, "100644", "100644", blob_id(old), blob_id(new), hunks_between(old, new))
        header = Header({"Subject": (f"Synthetic {number}",), "Last-Update": ("2026-01-01",)})
        patches.append(Patch(f"p{number}", header, (change,), render_patch(header, [change])))
        contents[path] = new
    return Stack(upstream, tuple(patches), (), {})


def checkout(folder: Path, cached: Path) -> str:
    """A repository in `folder` with the base checked out; returns the base commit."""
    base = tool_git.text(cached, "rev-parse", cache.BASE_REF)
    worktree.write_tree(folder, cached, base, [], "")
    return base


def ours(folder: Path, cached: Path, base: str, loaded: Stack) -> Callable[[], None]:
    def run() -> None:
        commits: list[Commit] = worktree.compute(cached, loaded, "bench")
        head, _ = write_commits(folder, base, commits, "refs/heads/stack")
        tool_git.run(folder, "read-tree", "-m", "-u", base, head)
        tool_git.run(folder, "update-ref", "refs/heads/main", head)

    return run


def git_am(folder: Path, mails: Path) -> Callable[[], None]:
    words = ["git", "-c", "user.name=b", "-c", "user.email=b@invalid", "-C", str(folder), "am", "-q", str(mails)]
    return lambda: _call(words, folder)


def quilt(folder: Path, patches: Path) -> Callable[[], None]:
    env = {**_NO_CONFIG, "QUILT_PATCHES": os.path.relpath(patches, folder), "LC_ALL": "C"}
    return lambda: _call(["quilt", "--quiltrc", "-", "push", "-a", "-q"], folder, env)


def _call(words: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    subprocess.run(words, cwd=folder, env=env or _NO_CONFIG, check=True, stdout=subprocess.DEVNULL)


def reset(folder: Path, base: str) -> None:
    """Back to the base, as every round begins."""
    shutil.rmtree(folder / ".pc", ignore_errors=True)
    git(folder, "reset", "-q", "--hard", base)
    git(folder, "clean", "-qfdx")


def compare(name: str, cached: Path, loaded: Stack, rounds: int, scratch: Path) -> None:
    """Run all contenders `rounds` times and print their ratios to ours."""
    place = scratch / name.replace(" ", "-")
    folders = {who: place / who for who in ("ours", "git am", "quilt push")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        base = checkout(folder, cached)
    head, tree = write_commits(folders["ours"], base, worktree.compute(cached, loaded, "bench"), "refs/heads/stack")
    mails = place / "stack.mbox"
    full = ["--full-index", "--no-renames", "--text", "--stdout"]
    mails.write_bytes(tool_git.run(folders["ours"], "format-patch", "-q", *full, f"{base}..{head}"))
    series = place / "quilt"
    series.mkdir()
    commits = tool_git.text(folders["ours"], "rev-list", "--reverse", f"{base}..{head}").split()
    for number, commit in enumerate(commits):
        text = tool_git.run(folders["ours"], "show", "--format=", "--no-renames", commit)
        (series / f"{number:03}.patch").write_bytes(text)
    (series / "series").write_text("".join(f"{n:03}.patch\n" for n in range(len(commits))))
    runs = {
        "ours": ours(folders["ours"], cached, base, loaded),
        "git am": git_am(folders["git am"], mails),
        "quilt push": quilt(folders["quilt push"], series),
    }
    times: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(rounds):
        for who, run in runs.items():
            reset(folders[who], base)
            start = time.perf_counter()
            run()
            times[who].append(time.perf_counter() - start)
    for who in ("ours", "git am"):
        assert git(folders[who], "rev-parse", "HEAD^{tree}") == tree, f"{who} came to another tree"
        assert not git(folders[who], "status", "--porcelain"), f"{who} left a checkout that is not its commit"
    shutil.rmtree(folders["quilt push"] / ".pc")
    git(folders["quilt push"], "add", "-A", "-f")
    assert git(folders["quilt push"], "write-tree") == tree, "quilt came to another tree"
    print(f"{name}: {len(commits)} commits, {rounds} rounds, all to tree {tree[:12]}")
    for who in ("git am", "quilt push"):
        ratios = sorted(other / mine for other, mine in zip(times[who], times["ours"], strict=True))
        print(
            f"  {who:10} / ours: median {statistics.median(ratios):.2f}, worst {ratios[0]:.2f}, best {ratios[-1]:.2f}"
        )


def warm(rounds: int) -> None:
    """`trees` with nothing to do, against `git status` in both trees and a bare start of Python."""
    verb = [sys.executable, "-m", "scripts", "trees"]
    subprocess.run(verb, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    trees = sorted((ROOT / "build/trees").iterdir())
    others = [["git", "-C", str(t), "status", "--porcelain"] for t in trees] + [[sys.executable, "-c", "pass"]]
    seconds, ratios = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(verb, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        middle = time.perf_counter()
        for words in others:
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        seconds.append(middle - start)
        ratios.append(seconds[-1] / (time.perf_counter() - middle))
    print(f"trees with nothing to do: best {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s;")
    print(f"  {statistics.median(ratios):.2f} times `git status` in both trees plus a start of Python")


def main() -> int:
    """Print the ratios. Exit 0; speed decides no test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if shutil.which("quilt") is None:
        print("quilt is not installed (Debian: apt-get install quilt)", file=sys.stderr)
        return 3
    project = open_project(ROOT, [])
    lock = lockfile.load(project)
    with tempfile.TemporaryDirectory(prefix="frontier-bench-") as folder:
        for name, upstream in lock.upstreams.items():
            cached = ensure_base(project, upstream)
            compare(f"{name} real series", cached, stack.load(project, name), args.rounds, Path(folder))
        upstream = lock.get("vllm-gaudi")
        cached = ensure_base(project, upstream)
        compare("vllm-gaudi synthetic", cached, synthetic(cached, "vllm-gaudi"), args.rounds, Path(folder))
    warm(args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
