# SPDX-License-Identifier: Apache-2.0
"""`python -m scripts VERB`: each verb is one module with `arguments(parser)` and `run(project, args)`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from pathlib import Path

from scripts import console
from scripts.arguments import VerbParser
from scripts.errors import Exit, ToolError
from scripts.git import GitError

VERBS = {
    "fetch": "get the pinned upstream sources into the user cache",
    "trees": "build/trees/<upstream>: base, one commit per patch, one for the overlay",
    "export": "write patches, series and overlay back from the commits in build/trees",
    "lock": "rewrite upstream.lock from patches and overlay; --check only compares",
    "lint": "check series, headers, patches and overlay against the rules",
    "verify": "prove that lock, patches, overlay, cache and trees belong together",
    "status": "the debt of the stack as numbers",
    "guard": "drop just one patch and demand that its guard fails, then with it that it passes",
    "rebase": "rehearse a stack on another upstream tag; --accept takes it there",
    "show": "render one patch with as much context as wanted",
    "wheels": "build both wheels from the locked trees into dist/",
    "image": "the container image; --check builds it over a small local base",
    "env": "build or repair the virtual environments below build/",
    "demo": "serve a tiny checkpoint on the emulated Gaudi and talk to it",
    "test": "run every suite in its environment",
}
_PIPE_CLOSED = 141  # what a shell reports of a program that ended by SIGPIPE
_CODES = """exit codes:
  0  done
  1  a check found something (lint, verify, lock --check, guard)
  2  wrong command line
  3  lock, series, patch, overlay, archive or tree cannot be used as they are
  4  a source could not be reached
  5  a rebase needs a decision
  6  refused: going on would lose work
"""


def parser() -> argparse.ArgumentParser:
    """The command line. The options of the project go before or after the verb."""
    top = argparse.ArgumentParser(
        prog="python -m scripts",
        description=__doc__,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _project_options(top, "project")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=VerbParser)
    for name, purpose in VERBS.items():
        sub = verbs.add_parser(name, help=purpose, description=purpose)
        sub.verb = name
        _project_options(sub, "verb")
    return top


def _project_options(to: argparse.ArgumentParser, place: str) -> None:
    """Add --root and --source; each place keeps its own values: argparse lets the later erase the earlier."""
    to.add_argument(
        "--root",
        type=Path,
        dest=f"{place}_root",
        metavar="FOLDER",
        help="project folder (default: the one this tool lies in)",
    )
    to.add_argument(
        "--source",
        action="append",
        default=[],
        dest=f"{place}_source",
        metavar="NAME=PATH",
        help="take an upstream from a local git repository, folder or archive",
    )


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        args = parser().parse_args(words)
        from scripts.paths import open_project
        from scripts.transaction import recover

        project = open_project(args.verb_root or args.project_root, [*args.project_source, *args.verb_source])
        recover(project)
        return int(importlib.import_module(f"scripts.{args.verb}").run(project, args))
    except ToolError as exc:
        console.error(str(exc))
        return int(exc.code)
    except GitError as exc:
        action = "see the message of git above"
        if exc.disk:
            action = "free space there (TMPDIR chooses the folder for temporary files), then run the command again"
        console.error(f"{exc}\n  where: {exc.where or 'git'}\n  next:  {action}")
        return int(Exit.BAD_INPUT)
    except BrokenPipeError:
        # Whoever read stdout has enough: no error, and nothing more to write when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return _PIPE_CLOSED
    except OSError as exc:
        where = exc.filename or "the system names no path: standard output, or the folder for temporary files (TMPDIR)"
        console.error(f"{exc.strerror or exc}\n  where: {where}\n  next:  free or correct that path")
        return int(Exit.BAD_INPUT)
    except KeyboardInterrupt:
        console.error("interrupted; the state before this run stands")
        return int(Exit.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
