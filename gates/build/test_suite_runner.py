# SPDX-License-Identifier: Apache-2.0
"""`make test` tells the truth: counts, failures, what could not run and why, on small suites in a folder."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import test as runner
from scripts.environment import Environment
from scripts.errors import Exit, ToolError
from scripts.paths import Project

ROOT = Path(__file__).resolve().parents[2]


class Here(Environment):
    """The interpreter that runs this test, as an environment."""

    @property
    def interpreter(self) -> Path:
        return Path(sys.executable)


HERE = Here("here", "here", "none", "a test")
SUITE = """
import pytest

def test_fine(): pass
def test_also(): pass
@pytest.mark.skip(reason="no device")
def test_skipped(): pass
@pytest.mark.long
def test_long(): pass
@pytest.fixture
def broken(): raise RuntimeError("no fixture")
"""


def unreachable(project: Project) -> Environment:
    raise ToolError("vllm-gaudi cannot be fetched", where="https://example.org", action="x", code=Exit.UNREACHABLE)


def broken(project: Project) -> Environment:
    raise ToolError("the lock is no TOML", where="upstream.lock", action="restore it")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: minutes\n")
    for name in ("one", "two", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "one/test_one.py").write_text(SUITE)
    (tmp_path / "two/test_two.py").write_text("def test_two(): pass\n")
    return Project(tmp_path, tmp_path / "cache", {})


def run(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *parts: runner.Part,
    long: bool = False,
    jobs: int = 1,
) -> tuple[int, list[str]]:
    """Exit code and lines on stdout (pytest's own output goes past capsys)."""
    monkeypatch.setattr(runner, "PARTS", parts)
    code = runner.run(project, argparse.Namespace(long=long, part=None, jobs=jobs, words=["-q"]))
    return code, capsys.readouterr().out.strip().splitlines()


def part(name: str, *folders: str, prepare: object = None) -> runner.Part:
    return runner.Part(name, folders, prepare or (lambda project: HERE))  # type: ignore[arg-type]


def test_a_green_run_counts_every_part(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(project, monkeypatch, capsys, part("a", "one"), part("b", "two", "missing"), part("c", "empty"))
    assert code == 0
    assert re.fullmatch(r"a +PASS  2 passed, 0 failed, 1 skipped in \d+ s", lines[-4])
    assert re.fullmatch(r"b +PASS  1 passed, 0 failed, 0 skipped in \d+ s", lines[-3])
    assert re.fullmatch(r"c +PASS  0 passed, 0 failed, 0 skipped in \d+ s", lines[-2])
    assert lines[-1] == "3 passed, 0 failed, 1 skipped"


def test_long_tests_run_only_when_asked(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(project, monkeypatch, capsys, part("a", "one"), long=True)
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 0 skipped")


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("def test_wrong(): assert False\n", 1),
        ("def test_error(broken): pass\n", 1),
        ("import nothing_of_that_name\n", 1),
        ("import os\ndef test_dies(): os._exit(3)\n", 1),
    ],
    ids=["assertion", "fixture", "collection", "the whole process dies"],
)
def test_every_kind_of_failure_fails_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, failed: int
) -> None:
    with (project.root / "two/test_two.py").open("a") as suite:
        suite.write(SUITE.partition("def test_fine")[0] + SUITE[SUITE.index("@pytest.fixture") :] + text)
    code, lines = run(project, monkeypatch, capsys, part("a", "one"), part("b", "two"))
    assert code == Exit.CHECK_FAILED
    assert lines[-2].split()[:2] == ["b", "FAIL"]
    assert re.fullmatch(rf"[23] passed, {failed} failed, 1 skipped", lines[-1])


def test_an_old_report_is_not_counted_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(project, monkeypatch, capsys, part("b", "two"))
    (project.root / "two/test_two.py").write_text("import os\nos._exit(0)\n")
    code, lines = run(project, monkeypatch, capsys, part("b", "two"))
    assert lines[-1].startswith("0 passed")
    assert code == Exit.CHECK_FAILED, "a process that ends well without a report has tested nothing"


def test_an_unreachable_source_skips_its_part_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(project, monkeypatch, capsys, part("a", "one", prepare=unreachable), part("b", "two"))
    assert code == 0
    assert lines[-3] == "a        SKIP  vllm-gaudi cannot be fetched (https://example.org)"
    assert lines[-1] == "1 passed, 0 failed, 1 skipped"


def test_any_other_fault_of_an_environment_is_an_error(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError, match="the lock is no TOML"):
        run(project, monkeypatch, capsys, part("a", "one", prepare=broken), part("b", "two"))


MEETING = """
import pathlib, time

def test_meets():
    here = pathlib.Path(__file__).parent
    (here / "arrived").touch()
    for _ in range({tries}):
        if (here.parent / "{other}" / "arrived").exists():
            return
        time.sleep(0.01)
    assert False, "the other part does not run at the same time"
"""


def meeting(project: Project, *, tries: int) -> None:
    """Two suites that pass only when each sees the other run."""
    (project.root / "one/test_one.py").write_text(MEETING.format(other="two", tries=tries))
    (project.root / "two/test_two.py").write_text(MEETING.format(other="one", tries=tries))


def test_two_jobs_run_two_parts_at_once_and_say_whose_line_it_is(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meeting(project, tries=6000)
    code, lines = run(project, monkeypatch, capsys, part("a", "one"), part("b", "two"), jobs=2)
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 0 skipped")
    assert [line.split()[0] for line in lines[-3:-1]] == ["a", "b"], "the summary keeps the parts' order"
    assert {line[0] for line in lines if "| 1 passed" in line} == {"a", "b"}


def test_one_job_runs_one_part_after_the_other(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meeting(project, tries=1)
    code, lines = run(project, monkeypatch, capsys, part("a", "one"), part("b", "two"))
    assert (code, lines[-1]) == (Exit.CHECK_FAILED, "1 passed, 1 failed, 0 skipped")


def test_failures_side_by_side_fail_the_run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.root / "two/test_two.py").write_text("import os\ndef test_dies(): os._exit(3)\n")
    code, lines = run(
        project, monkeypatch, capsys, part("a", "one"), part("b", "two"), part("c", "one", prepare=unreachable), jobs=2
    )
    assert code == Exit.CHECK_FAILED
    assert [line.split()[1] for line in lines[-4:-1]] == ["PASS", "FAIL", "SKIP"]


def test_the_longest_part_begins_first(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name stands on the first line, or the run would end with it alone."""
    long_one = runner.Part("b", ("two",), lambda project: HERE, minutes=9)
    monkeypatch.setattr(runner, "PARTS", (part("a", "one"), long_one))
    runner.run(project, argparse.Namespace(long=False, part=None, jobs=1, words=["-q"]))
    begun = [line for line in capsys.readouterr().err.splitlines() if line.startswith("== ")]
    assert begun == ["== b: two", "== a: one"]


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²"])
def test_a_number_of_jobs_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no number of jobs"):
        runner._jobs(text)


def test_every_folder_with_tests_is_in_a_part() -> None:
    """A suite that no target runs is a suite nobody sees fail."""
    covered = [ROOT / folder for item in runner.PARTS for folder in item.folders]
    for path in sorted((ROOT / "gates").rglob("test_*.py")):
        assert any(folder in path.parents for folder in covered), f"{path.relative_to(ROOT)} is run by no part"


def test_names_of_test_files_are_unique() -> None:
    """Plain folders are collected side by side; two files of one name would be one module."""
    seen: dict[str, Path] = {}
    for path in sorted((ROOT / "gates").rglob("test_*.py")):
        assert path.name not in seen, f"{path.relative_to(ROOT)} and {seen[path.name].relative_to(ROOT)}"
        seen[path.name] = path


def test_make_alone_prints_its_targets_and_every_one_is_described() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, env={**os.environ}, check=True
    )
    shown = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert phony
    assert shown == set(phony[1].split())
    readme = (ROOT / "README.md").read_text()
    for target in re.findall(r"^    make ([a-z-]+)", readme, flags=re.M):
        assert target in shown, f"README names `make {target}`"


def test_a_target_that_is_ended_ends_what_it_runs() -> None:
    """make passes SIGTERM on to its child alone: a shell in between must have become the long command."""
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t") and "&&" in line]
    assert lines
    for line in lines:
        last = line.rpartition("&&")[2].split()
        assert last[0] == "exec" or "lint" in line, f"without exec: {line.strip()}"
