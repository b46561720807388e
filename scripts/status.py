# SPDX-License-Identifier: Apache-2.0
"""status: the debt of the stack as numbers."""

from __future__ import annotations

import argparse
import datetime
import json
from typing import Any

from scripts import lockfile, stack, worktree
from scripts.console import data
from scripts.errors import Exit
from scripts.lockfile import Upstream
from scripts.paths import Project, quote


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, for plotting over time")


def state_of(forwarded: str) -> str:
    """The Forwarded field as one of: no, not-needed, sent (an address), prepared (a text in docs/)."""
    if forwarded in ("no", "not-needed"):
        return forwarded
    return "sent" if forwarded.startswith("https://") else "prepared"


def measure(project: Project, upstream: Upstream, today: datetime.date) -> dict[str, Any]:
    """Counts of one upstream: patches by state, hook lines per file, overlay size, ages in days."""
    loaded = stack.load(project, upstream.name)
    states: dict[str, int] = {}
    hooks: dict[str, dict[str, int]] = {}
    ages: dict[str, int] = {}
    for patch in loaded.patches:
        state = state_of(patch.header.get("Forwarded"))
        states[state] = states.get(state, 0) + 1
        for change in patch.changes:
            counts = hooks.setdefault(quote(change.path), {"added": 0, "removed": 0, "patches": 0})
            counts["added"] += change.added
            counts["removed"] += change.removed
            counts["patches"] += 1
        try:
            ages[patch.name] = (today - datetime.date.fromisoformat(patch.header.get("Last-Update"))).days
        except ValueError:
            continue
    lines = sum(len(f.data.splitlines()) for f in loaded.overlay if f.mode != "120000")
    built = worktree.read_stamp(project.tree(upstream.name))
    return {
        "version": upstream.version,
        "pin": upstream.pin,
        "patches": len(loaded.patches),
        "forwarded": dict(sorted(states.items())),
        "hook_lines": {path: hooks[path] for path in sorted(hooks)},
        "overlay_files": len(loaded.overlay),
        "overlay_lines": lines,
        "age_days": ages,
        "tree": "not built" if built is None else "current" if built.tree == upstream.patched_tree else "stale",
    }


def run(project: Project, args: argparse.Namespace) -> int:
    """Print a summary, or JSON."""
    lock = lockfile.load(project)
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    report = {name: measure(project, upstream, today) for name, upstream in lock.upstreams.items()}
    if args.json:
        data(json.dumps({"lock_hash": lock.hash, "date": today.isoformat(), "upstreams": report}, indent=1))
        return Exit.OK
    data(f"lock {lock.hash[:16]}")
    for name, counts in report.items():
        states = ", ".join(f"{number} {state}" for state, number in counts["forwarded"].items()) or "none"
        data(f"\n{name} {counts['version']} ({counts['pin'][:12]}), tree {counts['tree']}")
        data(f"  patches   {counts['patches']:4}  forwarded: {states}")
        data(f"  overlay   {counts['overlay_files']:4} files, {counts['overlay_lines']} lines")
        if counts["age_days"]:
            oldest = max(counts["age_days"], key=lambda patch: (counts["age_days"][patch], patch))
            data(f"  oldest    {counts['age_days'][oldest]:4} days ({oldest})")
        for path, hook in counts["hook_lines"].items():
            data(f"  hooks    +{hook['added']:<3} -{hook['removed']:<3} {path} ({hook['patches']} patches)")
    return Exit.OK
