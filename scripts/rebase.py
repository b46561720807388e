# SPDX-License-Identifier: Apache-2.0
"""rebase: rehearse the stack of one upstream on another tag, and take it there when asked to."""

from __future__ import annotations

import argparse
from dataclasses import replace

from scripts import lockfile, rebase_report, rebase_session, rebasing, resolving, stack
from scripts.console import data, note
from scripts.errors import Exit, ToolError
from scripts.lockfile import Lock
from scripts.locking import exclusive
from scripts.paths import Project
from scripts.rebasing import Rehearsal
from scripts.transaction import Transaction


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--upstream", required=True, help="which upstream moves")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="TARGET", help="tag, branch or commit; for an sdist a release")
    what.add_argument("--continue", dest="go_on", action="store_true", help="go on after a conflict was resolved")
    what.add_argument("--abort", action="store_true", help="give up a rebase in progress; nothing has changed")
    parser.add_argument("--drop", action="append", default=[], metavar="PATCH", help="leave this patch out")
    parser.add_argument("--accept", action="store_true", help="write patches, series, lock and report")
    parser.add_argument("--report", metavar="FILE", help="where the report goes: a .md file in the project folder")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the report; exit 5 when something needs a decision."""
    refuse_odd_words(project, args)
    with exclusive(project.build / "trees.lock"):
        if args.abort:
            return abort(project, args.upstream)
        if args.go_on:
            return go_on(project, args.upstream)
        return begin(project, args)


def refuse_odd_words(project: Project, args: argparse.Namespace) -> None:
    """Raise ToolError for options that would have no effect, and for a report that would overwrite something else."""
    given = [
        word for word, value in (("--drop", args.drop), ("--accept", args.accept), ("--report", args.report)) if value
    ]
    if args.to is None and given:
        raise ToolError(
            f"{given[0]} has no effect with {'--abort' if args.abort else '--continue'}",
            where="command line",
            action="give it together with --to, when the rebase begins",
            code=Exit.USAGE,
        )
    if args.report is None:
        return
    root, path = project.root.resolve(), (project.root / args.report).resolve()
    if root not in path.parents or path.suffix != ".md":
        raise ToolError(
            f"`--report {args.report}` is no .md file in the project folder",
            where=str(path),
            action="give a path such as build/rebase-reports/NAME.md",
            code=Exit.USAGE,
        )
    if path.exists() and not (path.is_file() and rebase_report.COLUMNS.encode() in path.read_bytes()):
        raise ToolError(
            f"`--report {args.report}` would overwrite what is no report of a rebase",
            where=str(path),
            action="give another path, such as build/rebase-reports/NAME.md",
            code=Exit.USAGE,
        )


def begin(project: Project, args: argparse.Namespace) -> int:
    """Rehearse, and with --accept carry it out."""
    lock = lockfile.load(project)
    lockfile.check_hash(lock)
    before = lock.get(args.upstream)
    if rebase_session.load(project, before.name):
        raise ToolError(
            f"a rebase of `{before.name}` is under way",
            where=str(rebase_session.folder(project, before.name)),
            action="finish it with --continue or give it up with --abort",
            code=Exit.REFUSED,
        )
    if args.accept and (lost := rebasing.unexported_work(project, before.name)):
        raise ToolError(
            f"the tree of `{before.name}` holds work that is not exported: {lost}",
            where=str(project.tree(before.name)),
            action="run `export`, or discard it with `trees --force`",
            code=Exit.REFUSED,
        )
    after = rebasing.target(project, before, args.to)
    loaded = stack.load(project, before.name)
    rehearsal = rebasing.rehearse(project, lock, before, after, loaded, tuple(args.drop))
    text = rebase_report.render(rehearsal)
    report = args.report or report_name(rehearsal, accept=args.accept)
    data(text)
    if not args.accept:
        with Transaction(project) as change:
            change.write(project.root / report, text.encode())
        note(f"rehearsed only, nothing is changed; report in {report}; --accept carries it out")
        return Exit.CONFLICT if rehearsal.conflicts or rehearsal.collisions else Exit.OK
    refuse_collisions(rehearsal)
    session = rebase_session.start(project, lock, after, loaded, tuple(args.drop), report)
    rebase_session.proceed(project, before, loaded, session)
    return complete(project, lock, rehearsal, loaded, session)


def complete(
    project: Project, lock: Lock, rehearsal: Rehearsal, loaded: stack.Stack, session: rebase_session.Session
) -> int:
    """Write the result of a session in which every patch is through."""
    before = rehearsal.before
    gone = rebase_session.finish(project, lock, before, loaded, session, rebase_report.render(rehearsal))
    for name in gone:
        note(f"patch {name} is gone: upstream has it, or it was dropped")
    note(f"{before.name} is at {rebase_report.name_of(session.after)}; report in {session.report}")
    note("next: python -m scripts trees && python -m scripts verify && python -m scripts guard")
    return Exit.OK


def go_on(project: Project, name: str) -> int:
    """Take up a session where a conflict stopped it."""
    lock = lockfile.load(project)
    session = needed(project, name)
    if lock.get(name).pin == session.after.pin:
        rebase_session.discard(project, name)
        note(f"{name}: this rebase was finished already")
        return Exit.OK
    loaded = stack.load(project, name)
    if rebase_session.inputs_of(lock, loaded) != session.inputs:
        raise ToolError(
            "lock, patches or overlay changed since the rebase began",
            where=str(project.root),
            action="restore them, or give up with --abort and begin again",
            code=Exit.REFUSED,
        )
    before = lock.get(name)
    if session.waiting:
        resolving.resolve(project, name, loaded, session)
    rebase_session.proceed(project, before, loaded, session)
    by_hand = resolving.contents_of(project, name, session)
    rehearsal = rebasing.rehearse(project, lock, before, session.after, loaded, tuple(session.drop), by_hand)
    return complete(project, lock, rehearsal, loaded, session)


def abort(project: Project, name: str) -> int:
    """Give up a session."""
    needed(project, name)
    rebase_session.discard(project, name)
    note(f"{name}: rebase given up; patches and lock are as before")
    return Exit.OK


def needed(project: Project, name: str) -> rebase_session.Session:
    """The session under way, or a ToolError."""
    session = rebase_session.load(project, name)
    if session is None:
        raise ToolError(
            f"no rebase of `{name}` is under way",
            where=str(rebase_session.folder(project, name)),
            action="begin one with --to TARGET --accept",
            code=Exit.REFUSED,
        )
    return replace(session)


def refuse_collisions(rehearsal: Rehearsal) -> None:
    """Refuse to accept while upstream has paths of the overlay."""
    if rehearsal.collisions:
        raise ToolError(
            f"{len(rehearsal.collisions)} overlay paths exist in the new upstream, see the report",
            where=f"overlay/{rehearsal.before.name}",
            action="rename or remove those files, run `lock`, then rebase again",
            code=Exit.CONFLICT,
        )


def report_name(rehearsal: Rehearsal, *, accept: bool) -> str:
    """Default place of the report: kept in docs when accepted, a result of the build when only rehearsed."""
    before, after = rehearsal.before, rehearsal.after
    goal = after.version if after.ref != "main" else f"main-{after.pin[:8]}"
    name = f"{before.name}-{before.version}-to-{goal}.md"
    return f"docs/rebase-reports/{name}" if accept else f"build/rebase-reports/{name}"
