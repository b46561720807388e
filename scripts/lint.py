# SPDX-License-Identifier: Apache-2.0
"""lint: the rules for series, headers, patches and overlay."""

from __future__ import annotations

import argparse

from scripts import cache, git, lint_rules, lockfile, stack
from scripts.console import data, error
from scripts.errors import Exit
from scripts.lockfile import Upstream
from scripts.paths import Project


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("upstream", nargs="*", help="default: all of the lock")


def subject(project: Project, upstream: Upstream) -> lint_rules.Subject:
    """What the rules look at; the base only when it is cached, lint never fetches."""
    folder = project.patches(upstream.name)
    series = stack.read_series_text(project, upstream.name)
    files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file() and p.name != "series"}
    cached = cache.base_path(project, upstream)
    base = git.ls_tree(cached, cache.BASE_REF) if cached.exists() else None
    overlay = stack.read_overlay(project.overlay(upstream.name))
    return lint_rules.Subject(upstream.name, series, files, overlay, base, project.root)


def check(found: lint_rules.Subject) -> tuple[list[str], list[str]]:
    """(findings, skipped rules) as lines of text."""
    findings, skipped = [], []
    for name in lint_rules.RULES:
        try:
            findings += [f"{f.where}: {name}: {f.what}; {f.action}" for f in lint_rules.judge(name, found)]
        except lint_rules.Skip as exc:
            skipped.append(f"{name} ({exc})")
    return findings, skipped


def run(project: Project, args: argparse.Namespace) -> int:
    """Print one line per upstream; findings go to stderr."""
    lock = lockfile.load(project)
    bad = 0
    for name in args.upstream or lock.upstreams:
        findings, skipped = check(subject(project, lock.get(name)))
        for line in findings:
            error(line)
        bad += len(findings)
        judged = len(lint_rules.RULES) - len(skipped)
        data(f"{name} {judged} rules judged, {len(findings)} findings, {len(skipped)} skipped")
        for line in skipped:
            data(f"  SKIP {line}")
    return Exit.CHECK_FAILED if bad else Exit.OK
