# SPDX-License-Identifier: Apache-2.0
"""fetch: the pinned bases in the user cache."""

from __future__ import annotations

import argparse

from scripts import lockfile
from scripts.console import data
from scripts.errors import Exit
from scripts.fetching import ensure_base
from scripts.paths import Project


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("upstream", nargs="*", help="default: all of the lock")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print one line per upstream: name, version, base tree, place in the cache."""
    lock = lockfile.load(project)
    for name in args.upstream or lock.upstreams:
        upstream = lock.get(name)
        path = ensure_base(project, upstream, recheck=True)
        data(f"{name} {upstream.version} {upstream.base_tree or '(tree not locked yet)'} {path}")
    return Exit.OK
