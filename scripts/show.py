# SPDX-License-Identifier: Apache-2.0
"""show: one patch with as much context as wanted, from the tree."""

from __future__ import annotations

import argparse

from scripts import git, lockfile, stack
from scripts.arguments import whole_number
from scripts.console import raw
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.paths import Project
from scripts.worktree import build


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patch", help="name of the patch, or <upstream>/<name>")
    parser.add_argument(
        "-U",
        "--context",
        type=whole_number(0, 1_000_000),
        default=10,
        metavar="N",
        help="lines of context (default 10)",
    )


def find(project: Project, lock: lockfile.Lock, word: str) -> tuple[str, str]:
    """(upstream, patch) that `word` names. Raises ToolError when there is none, or more than one."""
    upstream, slash, name = word.rpartition("/")
    name = name.removesuffix(".patch")
    wanted = [upstream.rpartition("/")[2]] if slash else list(lock.upstreams)
    hits = [u for u in wanted if name in stack.read_series(project, lock.get(u).name)]
    if len(hits) != 1:
        raise ToolError(
            f"{'no patch' if not hits else 'more than one patch'} `{word}`",
            where=str(project.root / "patches"),
            action="give <upstream>/<name> as listed in patches/<upstream>/series",
        )
    return hits[0], name


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the commit message and the diff of the patch."""
    lock = lockfile.load(project)
    name, patch = find(project, lock, args.patch)
    loaded = stack.load(project, name)
    stamp, _ = build(project, lock.get(name), loaded, ensure_base(project, lock.get(name)))
    place = [p.name for p in loaded.patches].index(patch)
    commit = git.text(project.tree(name), "rev-list", "--reverse", f"{stamp.base}..{stamp.head}").split()[place]
    text = git.run(
        project.tree(name),
        "show",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--format=%B",
        f"-U{args.context}",
        commit,
    )
    raw(text)
    return Exit.OK
