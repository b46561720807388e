# SPDX-License-Identifier: Apache-2.0
"""Compare laying the stack with `git am` and `quilt push`: `python -m scripts.bench_stack [--rounds N]`.

All three start from the same cached base and end with a checked-out patched tree. `git am` gets the same commits as
mails with full context, quilt the same changes as files. Rounds are interleaved, and only ratios within a run are
given, as other work on the machine moves absolute times. The result tree of every contestant is compared first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scripts import export, git, lock, lockfile, stack, trees, worktree
from scripts.cache import BASE_REF
from scripts.console import data, error, note
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.paths import Project, open_project

UPSTREAM = "vllm-gaudi"
SYNTHETIC = 60
_FIELDS = "Description: x\nOrigin: vendor\nForwarded: no\nLast-Update: 2026-01-01\nRemoval: x\nGuard: x\n"
_IDENTITY = ("-c", "user.name=x", "-c", "user.email=x@invalid", "-c", "commit.gpgSign=false", "-c", "gc.auto=0")


@dataclass(frozen=True)
class Contestant:
    """`prepare` is not timed; `run` lays the stack into a folder that does not exist yet and is."""

    name: str
    run: Callable[[Path], None]


def main(arguments: list[str] | None = None) -> int:
    """Print a table of ratios; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_stack", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-stack-") as scratch:
            compare(open_project(None, []), Path(scratch), options.rounds)
    except ToolError as problem:
        error(str(problem))
        return int(problem.code)
    return int(Exit.OK)


def compare(project: Project, scratch: Path, rounds: int) -> None:
    """Both series, real and synthetic, then the warm case."""
    with contextlib.redirect_stdout(io.StringIO()):  # the verbs' own data
        real = copy_without_overlay(project, scratch / "real")
        made = synthetic(real, scratch / "synthetic")
    measure("real series", real, scratch / "r", rounds)
    measure("synthetic series", made, scratch / "s", rounds)
    _tool(project, "trees")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    warm = [timed(lambda: _tool(project, "trees")) for _ in range(rounds)]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / rounds
    data(
        f"warm `trees`, both upstreams, as a process: {statistics.median(warm):.2f} s, of it {work:.2f} s of processor"
    )


def copy_without_overlay(project: Project, target: Path) -> Project:
    """The project with its patches alone: neither git am nor quilt knows an overlay."""
    target.mkdir()
    shutil.copytree(project.root / "patches", target / "patches")
    shutil.copyfile(project.lock, target / "upstream.lock")
    copied = Project(target, project.cache, project.sources)
    lock.run(copied, argparse.Namespace(check=False))
    return copied


def synthetic(real: Project, target: Path) -> Project:
    """A project whose series has SYNTHETIC patches, each changing one line of another Python file."""
    target.mkdir()
    for name in lockfile.load(real).upstreams:
        (target / "patches" / name).mkdir(parents=True)
        (target / "patches" / name / "series").write_text("")
    shutil.copyfile(real.lock, target / "upstream.lock")
    made = Project(target, real.cache, real.sources)
    lock.run(made, argparse.Namespace(check=False))
    trees.run(made, argparse.Namespace(upstream=[UPSTREAM], force=False))
    tree = made.tree(UPSTREAM)
    files = [path for path in sorted((tree / UPSTREAM.replace("-", "_")).rglob("*.py")) if path.stat().st_size > 200]
    for number in range(SYNTHETIC):
        path = files[number * len(files) // SYNTHETIC]
        lines = path.read_text().splitlines(keepends=True)
        middle = len(lines) // 2
        lines[middle:middle] = [f"# line of patch {number}\n"]
        path.write_text("".join(lines))
        git.run(tree, "commit", "--quiet", "--all", "-m", f"patch {number}\n\n{_FIELDS}Patch-Name: p{number:02}\n")
    export.run(made, _defaults(export.arguments, UPSTREAM))
    lock.run(made, argparse.Namespace(check=False))
    return made


def _defaults(arguments: Callable[[argparse.ArgumentParser], None], *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments(parser)
    return parser.parse_args(list(words))


def measure(title: str, project: Project, folder: Path, rounds: int) -> None:
    """Time every contestant on one series; print the ratio of each to ours."""
    folder.mkdir()
    upstream = lockfile.load(project).get(UPSTREAM)
    loaded = stack.load(project, UPSTREAM)
    cached = ensure_base(project, upstream)

    def ours(target: Path) -> None:
        place = replace(project, root=target)  # the tree is built below target/build
        worktree.build(place, upstream, loaded, cached)

    reference = folder / "reference"
    ours(reference)
    tree = reference / "build" / "trees" / UPSTREAM
    contestants = [Contestant("ours", ours), git_am(tree, cached, folder), *quilt(tree, cached, folder)]
    times: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(rounds):
        order = contestants[number % len(contestants) :] + contestants[: number % len(contestants)]
        for one in order:
            target = folder / "run"
            times[one.name].append(timed(lambda one=one, target=target: one.run(target)))  # type: ignore[misc]
            same_files(tree, target, one.name)
            shutil.rmtree(target)
    own = statistics.median(times["ours"])
    ratios = ", ".join(f"{name} {statistics.median(t) / own:.2f}" for name, t in times.items() if name != "ours")
    data(f"{title} ({len(loaded.patches)} patches): time as a multiple of ours, median of {rounds}: {ratios}")


def git_am(tree: Path, cached: Path, folder: Path) -> Contestant:
    """git am of the same commits, into a fresh clone of the cached base."""
    mails = folder / "mails"
    base = git.text(cached, "rev-parse", BASE_REF)
    git.run(tree, "format-patch", "--quiet", "--no-signature", "-o", str(mails), f"{base}..HEAD")
    files = sorted(map(str, mails.iterdir()))

    def run(target: Path) -> None:
        _call("git", "clone", "--quiet", "--no-checkout", str(cached), str(target))
        _call("git", "-C", str(target), "checkout", "--quiet", base)
        if files:
            _call("git", *_IDENTITY, "-C", str(target), "am", "--quiet", *files)

    return Contestant("git am", run)


def quilt(tree: Path, cached: Path, folder: Path) -> list[Contestant]:
    """quilt push of the same changes, into a fresh export of the base; none where quilt is not installed."""
    if not shutil.which("quilt"):
        note("quilt is not installed and was left out; on Debian: apt-get install quilt")
        return []
    patches = folder / "quilt"
    patches.mkdir()
    names: list[str] = []
    for commit in git.text(tree, "rev-list", "--reverse", "refs/frontier/base..HEAD").split():
        names.append(f"{len(names):03}.patch")
        (patches / names[-1]).write_bytes(git.run(tree, "diff-tree", "-p", "--no-commit-id", commit))
    (patches / "series").write_text("".join(f"{name}\n" for name in names))

    def run(target: Path) -> None:
        _call("git", "clone", "--quiet", "--no-checkout", str(cached), str(target))
        _call("git", "-C", str(target), "checkout", "--quiet", git.text(cached, "rev-parse", BASE_REF))
        if names:
            _call("quilt", "push", "-q", "-a", cwd=target, env={**os.environ, "QUILT_PATCHES": str(patches)})

    return [Contestant("quilt", run)]


def same_files(tree: Path, target: Path, name: str) -> None:
    """Raise ToolError when a contestant's files are not those of the locked tree: its time would mean nothing."""
    place = target / "build" / "trees" / UPSTREAM if (target / "build").is_dir() else target
    for path in git.text(tree, "diff", "--name-only", "refs/frontier/base", "HEAD").splitlines():
        if (tree / path).read_bytes() != (place / path).read_bytes():
            raise ToolError(f"{name} left another {path}", where=str(place), action="the comparison is void; report it")


def timed(run: Callable[[], None]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _call(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-400:]
        raise ToolError(f"`{' '.join(command[:2])}` failed: {said}", where=str(cwd or "."), action="see its message")


def _tool(project: Project, verb: str) -> None:
    _call(sys.executable, "-m", "scripts", verb, cwd=project.root)


if __name__ == "__main__":
    sys.exit(main())
