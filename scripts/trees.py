# SPDX-License-Identifier: Apache-2.0
"""trees: bring build/trees/<upstream> to base + patches + overlay."""

from __future__ import annotations

import argparse

from scripts import lockfile, stack, worktree
from scripts.console import data
from scripts.errors import Exit
from scripts.fetching import ensure_base
from scripts.locking import exclusive
from scripts.paths import Project


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("upstream", nargs="*", help="default: all of the lock")
    parser.add_argument("--force", action="store_true", help="discard work in the tree that was not exported")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print one line per upstream: name, tree id, whether it was rebuilt."""
    lock = lockfile.load(project)
    with exclusive(project.build / "trees.lock"):
        for name in args.upstream or lock.upstreams:
            upstream = lock.get(name)
            cached = ensure_base(project, upstream)
            stamp, rebuilt = worktree.build(project, upstream, stack.load(project, name), cached, force=args.force)
            data(f"{name} {stamp.tree} {'rebuilt' if rebuilt else 'unchanged'} {project.tree(name)}")
    return Exit.OK
