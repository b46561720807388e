# SPDX-License-Identifier: Apache-2.0
"""Run vllm-gaudi's own unit tests, read from its source tree, on the emulated Gaudi and list the results.

    python -m gates.hpusim.upstream_tests SOURCE [--write docs/upstream-unit-tests.md] [--only worker/test_x.py]

The source tree's own `vllm_gaudi` is the one tested: pass build/trees/vllm-gaudi for the patched one. Reports are kept
in build/upstream-unit-tests; `--junit` makes the list of reports from several runs, of parts of a file too.

The files of a folder share a process; when it dies, each gets its own, with a time limit. Every test that does not pass
must be explained: by a pattern in its error (`CAUSES`) or by its file (`FILES`). Exit code 1 when one is not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gates.hpusim import stand_in_hub, testing

FOLDER = Path("tests/unit_tests")
REPORTS = Path(__file__).resolve().parents[2] / "build" / "upstream-unit-tests"
TIMEOUT = 240  # seconds a file
# Tests keep what they allocated, so the card is a larger one.
SETTINGS = {"HPUSIM_HW": "gaudi3", "HPUSIM_MIX": "raise", "HPUSIM_MEM_GIB": "16"}

# Pattern in the failure -> why it is not a fault of the emulation, the plug-in or this project.
_HUB = "needs a model from the Hugging Face hub, which tests must not reach"
CAUSES: tuple[tuple[str, str], ...] = (
    ("Invalid repository ID or local directory specified", _HUB),
    ("Can't load the configuration of", _HUB),
    ("offline mode is enabled", _HUB),
    ("LocalEntryNotFoundError", _HUB),
    ("OfflineModeIsEnabled", _HUB),
    ("couldn't connect to 'https://huggingface.co'", _HUB),
    ("Repo id must be", _HUB),
    ("No such file or directory: '/mnt", "needs weights from a path of upstream's CI machines"),
    ("Expected at least 1 compiled graph, got 0", "counts files that Habana's graph compiler would write"),
    (
        r"emulated HPU out of memory: asked for \d{9,} bytes",
        "needs more memory than this run gives the emulated card (HPUSIM_MEM_GIB)",
    ),
    (
        r"assert_close\(\w+, ref_\w+, atol=1e-2, rtol=1e-2\)[\s\S]*Mismatched elements: \d\d? / 16777216 "
        r"[\s\S]*Greatest absolute difference: 0\.01[0-5]",
        "at most 31 of 16.7 million elements, by less than 0.016 where 0.01 is allowed: the test's reference rounds "
        "each product to bf16, the emulated kernel rounds once and is nearer to float64 "
        "(test_one_rounding_is_nearer_than_one_a_product_where_terms_cancel)",
    ),
)
FILES: dict[str, str] = {}


@dataclass
class FileResult:
    """Counts of one test file; `unexplained` holds test names with the end of their error."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: FileResult) -> None:
        """Take in the results of other tests of the same file."""
        self.counts.update(other.counts)
        self.explained.update(other.explained)
        self.unexplained += other.unexplained


def explain(file: str, text: str) -> str | None:
    """Why a failure is expected, None when nobody has looked at it yet."""
    for pattern, cause in CAUSES:
        if re.search(pattern, text):
            return cause
    return FILES.get(file)


def read_report(report: Path) -> dict[str, FileResult]:
    """Results by test file from a JUnit report of the xunit1 family."""
    results: dict[str, FileResult] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        name = str(case.get("file") or case.get("classname")).removeprefix(f"{FOLDER}/")
        result = results.setdefault(name, FileResult(name))
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is None:
            skipped = any(child.tag == "skipped" for child in case)
            result.counts["skipped" if skipped else "passed"] += 1
            continue
        result.counts["failed"] += 1
        text = f"{problem.get('message') or ''}\n{problem.text or ''}"
        cause = explain(name, text)
        if cause is None:
            last = re.sub(r"\s+", " ", (problem.get("message") or "").strip())[:200]
            result.unexplained.append((str(case.get("name")), last))
        else:
            result.explained[cause] += 1
    return results


def run_files(source: Path, names: list[str], timeout: float = TIMEOUT) -> dict[str, FileResult]:
    """Run test files in one process; when that one dies or runs out of time, each in its own."""
    with tempfile.TemporaryDirectory(prefix="hpusim-") as folder:
        report = Path(folder) / "report.xml"
        paths = [str(FOLDER / name) for name in names]
        command = [sys.executable, "-m", "pytest", *paths, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += [f"--timeout={timeout / 2:g}", "-o", "junit_logging=no", "-o", "junit_family=xunit1"]
        env = testing.environment("lazy_eager", **SETTINGS, HF_HUB_CACHE=str(stand_in_hub.make(Path(folder) / "hub")))
        done: int | str
        try:
            done = subprocess.run(
                command,
                cwd=source,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout * len(names),
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            done = f"stopped after {timeout * len(names):g} s"
        if report.exists():
            REPORTS.mkdir(parents=True, exist_ok=True)
            shutil.copy(report, REPORTS / f"{names[0].replace('/', '-')}.xml")
            return read_report(report)
    if len(names) > 1:
        return {key: value for name in names for key, value in run_files(source, [name], timeout).items()}
    result = FileResult(names[0], Counter({"not run": 1}))
    cause = explain(names[0], str(done))
    if cause is None:
        result.unexplained.append(("(file)", f"no report: {done}"))
    else:
        result.explained[cause] += 1
    return {names[0]: result}


def render(results: list[FileResult], revision: str) -> str:
    """The document."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.counts)
    lines = [
        "# vllm-gaudi's unit tests on the emulated Gaudi",
        "",
        f"Source {revision}, Gaudi 3 personality (upstream's golden outputs are of that card), lazy mode, "
        "pure-Python lane, no network; `facebook/opt-125m` is a stand-in's configuration. "
        "Made by `python -m gates.hpusim.upstream_tests SOURCE --write`.",
        "",
        f"In all: {', '.join(f'{count} {name}' for name, count in sorted(total.items()))}.",
        "",
        "| file | passed | failed | skipped | why not |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        why = [f"{count} x {cause}" for cause, count in result.explained.items()]
        why += [f"`{name}`: UNEXPLAINED {text}" for name, text in result.unexplained]
        failed = result.counts["failed"] + result.counts["not run"]
        lines.append(
            f"| {result.name} | {result.counts['passed']} | {failed} | {result.counts['skipped']} | {'; '.join(why)} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.hpusim.upstream_tests")
    parser.add_argument("source", type=Path, help="a vllm-gaudi source tree")
    parser.add_argument("--only", action="append", default=[], help="test file below tests/unit_tests; repeatable")
    parser.add_argument("--junit", type=Path, action="append", help="read this report instead of running; repeatable")
    parser.add_argument("--write", type=Path, help="where to write the list")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds a file (default %(default)g)")
    parser.add_argument("--revision", default="b059f9c9", help="what the document calls the source")
    options = parser.parse_args(arguments)
    folder = options.source / FOLDER
    if not folder.is_dir():
        print(f"{folder} does not exist: pass the root of a vllm-gaudi source tree", file=sys.stderr)
        return 2
    names = options.only or sorted(str(path.relative_to(folder)) for path in folder.rglob("test_*.py"))
    results: dict[str, FileResult] = {}
    if options.junit:
        groups = [read_report(path) for path in options.junit]
    else:
        folders = sorted({name.rpartition("/")[0] for name in names})
        grouped = [
            [name for name in names if name.rpartition("/")[0] == folder] for folder in folders if folder != "ops"
        ]
        grouped += [[name] for name in names if name.startswith("ops/")]  # one of them leaves bf16 as the default dtype
        groups = (run_files(options.source.resolve(), group, options.timeout) for group in grouped)
    for group in groups:
        for name, result in sorted(group.items()):
            results.setdefault(name, FileResult(name)).add(result)
            print(f"{name}: {dict(result.counts)}, {len(result.unexplained)} unexplained", flush=True)
            for test, text in result.unexplained:
                print(f"    {test}: {text}", flush=True)
    if options.write:
        options.write.write_text(render([results[name] for name in sorted(results)], options.revision))
    return 1 if any(result.unexplained for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
