# SPDX-License-Identifier: Apache-2.0
"""test: every suite in its own environment, one summary line a suite, one closing line over all."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts import env as env_verb
from scripts import environment, wheels
from scripts.console import data, note
from scripts.environment import Environment
from scripts.errors import Exit, ToolError
from scripts.paths import Project

_NOTHING_COLLECTED = 5  # pytest's exit code
_NO_REPORT = 70  # ours, for a process that ended well but wrote no report: it tested nothing
# A test must neither phone home nor fetch a model; what is set by the caller stands.
_DEFAULTS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Part:
    """One suite: its folders, what makes the environment it runs in, and about how long it takes."""

    name: str
    folders: tuple[str, ...]
    prepare: Callable[[Project], Environment]
    minutes: int = 1


@dataclass
class Result:
    """Counts of one part. `reason` is set when the part could not run at all."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    code: int = 0
    reason: str = ""

    def line(self) -> str:
        """The summary line of this part."""
        if self.reason:
            return f"{self.name:<8} SKIP  {self.reason}"
        verdict = "FAIL" if self.failed or self.code else "PASS"
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        crash = f"; pytest ended with {self.code}" if self.code and not self.failed else ""
        return f"{self.name:<8} {verdict}  {counts} in {self.seconds:.0f} s{crash}"


def _with_wheels(project: Project) -> Environment:
    """The tool's environment; wheels are built first where sources can be had, as its tests judge them."""
    env = environment.ensure("dev")
    try:
        wheels.build(project)
    except ToolError as error:
        if error.code != Exit.UNREACHABLE:
            raise
        note(f"the tests of trees and wheels will be skipped: {error.what} ({error.where})")
    return env


PARTS = (
    Part("build", ("gates/build", "gates/attacks"), _with_wheels, minutes=4),
    Part("gates", ("gates/selftest",), lambda project: environment.ensure("serve"), minutes=2),
    # Two parts in one environment, so that two cores share what starts servers.
    Part(
        "serving",
        ("gates/cpu/frontend", "gates/cpu/hpusim", "gates/cpu/runner", "gates/cpu/stack"),
        env_verb.ensure_serve,
        minutes=8,
    ),
    Part("models", ("gates/cpu/beam", "gates/cpu/loader", "gates/cpu/muse"), env_verb.ensure_serve, minutes=6),
    Part("oracle", ("gates/oracle/tests",), lambda project: environment.ensure("hf")),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--long", action="store_true", help="only the tests marked `long`, which are left out otherwise"
    )
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="default: all")
    parser.add_argument(
        "--jobs", type=_jobs, metavar="N", help="parts that run side by side; default: two where there are two cores"
    )
    parser.add_argument("words", nargs="*", help="further words for pytest, after --")


def run(project: Project, args: argparse.Namespace) -> int:
    """Run the parts and print the summary; exit 1 when a test failed."""
    chosen = [part for part in PARTS if not args.part or part.name in args.part]
    ready = [(part, *_prepare(project, part)) for part in chosen]
    jobs = min(args.jobs or min(2, _cores()), max(1, len(chosen)))
    # The longest first, or it would run alone at the end; every environment stands before the first test, because the
    # tests look at what they are run from.
    pool = ThreadPoolExecutor(jobs)
    try:
        running = {
            part.name: pool.submit(_run_part, project, part, env, result, args, jobs)
            for part, env, result in sorted(ready, key=lambda item: -item[0].minutes)
        }
        results = [running[part.name].result() for part in chosen]
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted, nothing further begins
    data("")
    for result in results:
        data(result.line())
    passed, failed, skipped = (sum(getattr(r, key) for r in results) for key in ("passed", "failed", "skipped"))
    # A part that could not run counts as one skip: the closing line must not look as if it had been there and passed.
    skipped += sum(1 for r in results if r.reason)
    failed += sum(1 for r in results if r.code and not r.failed)
    data(f"{passed} passed, {failed} failed, {skipped} skipped")
    return Exit.CHECK_FAILED if failed else Exit.OK


def _jobs(text: str) -> int:
    """A number of jobs from the command line."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of jobs: give 1 or more")
    return int(text)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare(project: Project, part: Part) -> tuple[Environment | None, Result]:
    """Make the part's environment. An unreachable source makes the part a SKIP with the reason; other faults raise."""
    result = Result(part.name)
    if not _folders(project, part):
        return None, result
    try:
        return part.prepare(project), result
    except ToolError as error:
        if error.code != Exit.UNREACHABLE:
            raise
        result.reason = f"{error.what} ({error.where})"
        note(f"== {part.name}: SKIP: {result.reason}")
        return None, result


def _folders(project: Project, part: Part) -> list[str]:
    """The part's folders that are there."""
    return [folder for folder in part.folders if (project.root / folder).is_dir()]


def _run_part(
    project: Project, part: Part, env: Environment | None, result: Result, args: argparse.Namespace, jobs: int
) -> Result:
    """Run one part in `env` and count into `result`; without an environment there is nothing to run."""
    if env is None:
        return result
    folders = _folders(project, part)
    note(f"== {part.name}: {' '.join(folders)}")
    report = project.build / "test" / f"{part.name}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [str(env.interpreter), "-m", "pytest", *folders, "-m", "long" if args.long else "not long"]
    command += [f"--junitxml={report}", "--color=auto", *args.words]
    variables = {**_DEFAULTS, **os.environ}
    if jobs > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // jobs)))
    started = time.monotonic()
    code = _tell(part.name if jobs > 1 else "", command, project, variables)
    result.seconds = time.monotonic() - started
    result.code = 0 if code == _NOTHING_COLLECTED else code
    if report.exists():
        count(report, result)
    else:
        result.code = result.code or _NO_REPORT
    return result


def _tell(name: str, command: list[str], project: Project, variables: dict[str, str]) -> int:
    """Run `command` to its exit code. With a `name` every line of its output begins with it: several run at once."""
    if not name:
        return subprocess.run(
            command, cwd=project.root, env=variables, stdin=subprocess.DEVNULL, check=False
        ).returncode
    with subprocess.Popen(
        command,
        cwd=project.root,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            data(f"{name:<7}| {line.decode('utf-8', 'replace').rstrip()}")
    return process.returncode


def count(report: Path, result: Result) -> None:
    """Add the counts of a JUnit file to `result`; an error in a fixture counts as a failure, once a test."""
    cases = ET.parse(report).getroot().iter("testcase")
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            result.failed += 1
        elif "skipped" in kinds:
            result.skipped += 1
        else:
            result.passed += 1
