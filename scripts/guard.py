# SPDX-License-Identifier: Apache-2.0
"""guard: drop just one patch and demand that its test fails; with the patch, demand that it passes."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts import cache, carrying, env, git, lint_rules, lockfile, pytest_run, runtime_path, stack, worktree
from scripts.applying import Commit, TreeState, apply_patch, overlay_commit
from scripts.console import data, note
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.lockfile import Lock
from scripts.locking import exclusive
from scripts.paths import Project
from scripts.show import find
from scripts.stack import Patch, Stack


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patch", nargs="*", help="name or <upstream>/<name>; default: every patch")
    parser.add_argument("--make-env", action="store_true", help="first build the environments that the guards run in")


@dataclass(frozen=True)
class Without:
    """A stack less one patch: its commits, and patches that had to go with it because they build on it."""

    commits: list[Commit]
    gone: list[str]


def run(project: Project, args: argparse.Namespace) -> int:
    """Print one line per patch: PASS, FAIL, SKIP or ERROR, and why."""
    lock = lockfile.load(project)
    chosen = [find(project, lock, word) for word in args.patch]
    if not args.patch:
        chosen = [(name, patch) for name in lock.upstreams for patch in stack.read_series(project, name)]
    bad = 0
    if args.make_env:
        make_environments(project, lock, chosen)
    with exclusive(project.build / "trees.lock"):
        loaded = {name: stack.load(project, name) for name in lock.upstreams}
        for name in lock.upstreams:
            worktree.build(project, lock.get(name), loaded[name], ensure_base(project, lock.get(name)))
        for name, patch in chosen:
            verdict = check(project, lock, loaded[name], patch)
            data(f"{name}/{patch} {verdict}")
            bad += verdict.split()[0] in ("FAIL", "ERROR")
    return Exit.CHECK_FAILED if bad else Exit.OK


def make_environments(project: Project, lock: Lock, chosen: list[tuple[str, str]]) -> None:
    """Build or repair what the guards of `chosen` run in, less what the user named an interpreter for."""
    loaded = {name: stack.load(project, name) for name in lock.upstreams}
    nodes = [p.header.get("Guard") for name in loaded for p in loaded[name].patches if (name, p.name) in chosen]
    wanted = {pytest_run.environment_of(node) for node in nodes} - {"dev"}
    names = sorted(name for name in wanted if not os.environ.get(pytest_run.PYTHON_VARIABLE + name.upper()))
    if names:
        with contextlib.redirect_stdout(sys.stderr):
            env.run(project, argparse.Namespace(names=names, python=None, check=False))


def check(project: Project, lock: Lock, loaded: Stack, name: str) -> str:
    """The verdict on one patch and its guard, as a line that starts with PASS, FAIL, SKIP or ERROR."""
    patch = next(p for p in loaded.patches if p.name == name)
    node = patch.header.get("Guard")
    if problem := lint_rules.guard_problem(project.root, node):
        return f"ERROR guard `{node}`: {problem}"
    note(f"{loaded.upstream}/{name}: {node}")
    trees = {other: project.tree(other) for other in lock.upstreams}
    upstream = lock.get(loaded.upstream)
    cached = ensure_base(project, upstream)
    less = without(cached, loaded, name, str(project.root))
    holder = project.build / "guard"
    holder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{loaded.upstream}-", dir=holder))
    try:
        base = git.text(cached, "rev-parse", cache.BASE_REF)
        worktree.write_tree(scratch, cached, base, less.commits, "")
        absent = run_on(project, lock, node, {**trees, loaded.upstream: scratch})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    gone = f" (with {', '.join(less.gone)}, which build on it)" if less.gone else ""
    if absent.word == "SKIP":
        return f"SKIP {absent.reason}"
    if absent.word != "FAIL":
        note(absent.output)
        return f"{'FAIL' if absent.word == 'PASS' else 'ERROR'} without the patch{gone} its guard says {absent.word}"
    present = run_on(project, lock, node, trees)
    if present.word != "PASS":
        note(present.output)
        return f"{'FAIL' if present.word == 'FAIL' else 'ERROR'} with the patch its guard says {present.word}"
    return f"PASS guard fails without it{gone} and passes with it"


def run_on(project: Project, lock: Lock, node: str, trees: dict[str, Path]) -> pytest_run.Verdict:
    """Run a guard on the given trees: named in FRONTIER_TREE_<NAME>, and importable where torch is there to import."""
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        folder = runtime_path.assemble(
            Path(scratch) / "path", {n: (tree, lock.get(n).version) for n, tree in trees.items()}
        )
        extra = {f"FRONTIER_TREE_{n.upper().replace('-', '_')}": str(tree) for n, tree in trees.items()}
        inherited = os.environ.get("PYTHONPATH")
        if pytest_run.environment_of(node) != "dev":
            extra["PYTHONPATH"] = f"{folder}{os.pathsep}{inherited}" if inherited else str(folder)
        return pytest_run.run(project, node, extra)


def without(cached: Path, loaded: Stack, name: str, root: str) -> Without:
    """The commits of `loaded` less the patch `name`; later patches of the same files are carried over the gap."""
    with git.Objects(cached) as objects:
        entries = git.ls_tree(cached, cache.BASE_REF)
        old, new = TreeState(dict(entries), objects.read), TreeState(dict(entries), objects.read)
        commits: list[Commit] = []
        gone: list[str] = []
        for patch in loaded.patches:
            if patch.name != name:
                carried = carrying.carry(old, new, patch)
                if carried.outcome == carrying.CONFLICT:
                    gone.append(patch.name)
                else:
                    moved = Patch(patch.name, patch.header, tuple(carried.changes), patch.data)
                    commits.append(apply_patch(new, moved, root))
            apply_patch(old, patch, root)
        if len(commits) + len(gone) + 1 != len(loaded.patches):
            raise ToolError(f"no patch `{name}`", where=root, action="see patches/*/series", code=Exit.USAGE)
        if loaded.overlay:
            commits.append(overlay_commit(new, loaded.upstream, loaded.overlay, "2000-01-01", root))
    return Without(commits, gone)
