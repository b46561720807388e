# SPDX-License-Identifier: Apache-2.0
"""The Makefile on a copy of the project: variables it wants, interpreters it cannot use, and no needless start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gates.build.demo import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Makefile and tool in a folder with a space in its name, and a stand-in for an environment that is up to date."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "build/venv/bin").mkdir(parents=True)
    (folder / "build/venv/lib/python3.11/site-packages").mkdir(parents=True)
    script(folder / "build/venv/bin/python", 'echo "tool: $*"')
    (folder / "build/venv/environment.stamp").write_text("{}\n")
    later = time.time() + 5
    os.utime(folder / "build/venv/environment.stamp", (later, later))
    return folder


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
    return subprocess.run(
        ["make", *words], cwd=folder, env={**kept, **env}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "wants"),
    [
        (["rebase"], "`make rebase` also wants UPSTREAM TO: make rebase UPSTREAM=vllm-gaudi TO=v0.27.0rc0"),
        (["rebase", "UPSTREAM=vllm"], "`make rebase` also wants TO:"),
        (["rebase", "TO=1", "UPSTREAM= "], "`make rebase` also wants UPSTREAM:"),
        (["gates", "PROFILE=node"], "`make gates` also wants URL: make gates URL=http"),
    ],
)
def test_a_missing_variable_is_named_before_anything_is_built(checkout: Path, words: list[str], wants: str) -> None:
    (checkout / "build/venv/environment.stamp").unlink()
    done = make(checkout, *words)
    assert done.returncode == 2
    assert wants in done.stderr
    assert not done.stdout
    assert not (checkout / "build/venv/environment.stamp").exists()


def test_variables_reach_the_tool_whole(checkout: Path) -> None:
    done = make(checkout, "rebase", "UPSTREAM=vllm-gaudi", "TO=a tag")
    assert done.stdout == "tool: -m scripts rebase --upstream vllm-gaudi --to a tag\n", done.stderr


def test_the_gates_are_asked_for_whole_and_need_no_serving_environment(checkout: Path) -> None:
    (checkout / "build/gates/bin").mkdir(parents=True)
    script(checkout / "build/venv/bin/python", 'echo "$*" >>asked')
    script(checkout / "build/gates/bin/python", 'for word in "$@"; do echo "$word"; done')
    done = make(checkout, "gates", "URL=http://h", "SERVER_ARGS=--tp 8 -x", "REFERENCE=a file", "SERVER_LOG=log")
    words = ["--base-url", "http://h", "--profile", "quick", "--reference", "a file", "--server-args=--tp 8 -x"]
    assert done.stdout.splitlines() == ["-m", "gates", "run", *words, "--server-log", "log"], done.stderr
    assert make(checkout, "report").stdout.splitlines() == ["-m", "gates", "report"]
    assert make(checkout, "gate-controls").stdout.splitlines() == ["-m", "gates.controls.matrix"]
    assert (checkout / "asked").read_text() == "-m scripts env gates\n" * 3


def test_every_variable_a_recipe_cannot_do_without_is_asked_for() -> None:
    """A variable used bare, outside `$(if` and `$(or`, must be among those that `needs` lists for its target."""
    text = (ROOT / "Makefile").read_text()
    rules = [part for part in text.split("\n\n") if "\n\t" in part and not part.startswith(("#", "$(DEV)"))]
    assert len(rules) > 15
    own = {"TOOL", "DEV", "GIVEN", "PYTHON", "MAKEFILE_LIST", "PATCH"}  # PATCH may be empty: every patch
    for rule in rules:
        target = rule.partition(":")[0]
        for name in {word.partition(")")[0] for word in rule.split("$(")[1:]} - own:
            if name.isupper() and f"$(if $({name})" not in rule and f"$(or $({name})" not in rule:
                listed = [line for line in text.splitlines() if line.startswith(f"$(call needs,{target},")]
                assert listed, f"{target} uses {name}"
                assert name in listed[0].split(",")[2].split()


REFUSED = {
    "no program": ("/nonexistent/python", "`/nonexistent/python` is no program that can be run"),
    "silent": ("exit 1", "ended with 1 and said: nothing"),
    "no Python": ("echo hello", "ended with 0 and said: hello"),
    "too old to ask": ("echo python 2 7", "is Python 2.7, which the tool does not run on"),
    "old": ("echo python 3 8", "is Python 3.8, which the tool does not run on"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_an_interpreter_that_cannot_is_named(checkout: Path, kind: str, tmp_path: Path) -> None:
    body, says = REFUSED[kind]
    python = body if body.startswith("/") else str(script(tmp_path / "other python", body))
    done = make(checkout, "wheels", f"PYTHON={python}")
    assert done.returncode == 2, "make's own"
    assert says in done.stderr
    assert f"where: PYTHON={python}\n" in done.stderr
    assert "next:  name a Python 3.10 to 3.13" in done.stderr
    assert "tool:" not in done.stdout


def test_no_interpreter_at_all(checkout: Path, tmp_path: Path) -> None:
    (checkout / "build/venv/environment.stamp").unlink()
    (tmp_path / "bin").mkdir()
    for name in ("sh", "make", "printf"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    done = make(checkout, "wheels", PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert "no interpreter: neither python3.11 nor python3 is on PATH" in done.stderr


def count_starts(checkout: Path, tmp_path: Path) -> tuple[str, Path]:
    """An interpreter that counts how often it was started, and where it counts."""
    log = tmp_path / "starts"
    log.touch()
    body = f'echo started >>"{log}"\ncase "$1" in -c) echo python 3 11;; esac'
    return str(script(tmp_path / "counting", body)), log


def test_an_environment_that_is_up_to_date_costs_no_start(checkout: Path, tmp_path: Path) -> None:
    python, log = count_starts(checkout, tmp_path)
    done = make(checkout, "trees")
    assert done.stdout == "tool: -m scripts trees\n"
    assert not log.read_text()
    assert make(checkout, "trees", f"PYTHON={python}").returncode == 0
    assert log.read_text().count("started") == 2, "an interpreter that is named is looked at"


STALE = {
    "list changed": "requirements/dev.txt",
    "recipe changed": "scripts/environment.py",
    "package came or went": "build/venv/lib/python3.11/site-packages",
    "another Python": "build/venv/bin/python",
}


@pytest.mark.parametrize("kind", list(STALE))
def test_an_environment_that_may_be_stale_is_looked_at_once(checkout: Path, tmp_path: Path, kind: str) -> None:
    python, log = count_starts(checkout, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.11").symlink_to(python)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    stamp = checkout / "build/venv/environment.stamp"
    os.utime(stamp, (time.time() - 50, time.time() - 50))
    for part in STALE.values():
        os.utime(checkout / part, (time.time() - 60, time.time() - 60))
    os.utime(checkout / "scripts/dev_environment.sh", (time.time() - 60, time.time() - 60))
    assert make(checkout, "trees", PATH=path).returncode == 0
    assert not log.read_text(), "control: nothing is newer"
    os.utime(checkout / STALE[kind], (time.time() - 40, time.time() - 40))
    assert make(checkout, "trees", PATH=path).returncode == 0
    assert log.read_text().count("started") == 2
    assert make(checkout, "trees", PATH=path).returncode == 0
    assert log.read_text().count("started") == 2, "the stamp is as new as the look at it"


def test_this_interpreter_passes(checkout: Path) -> None:
    """Control: the checks in front of the environment let a fitting one through, up to its own refusal."""
    (checkout / "requirements/dev.txt").write_text("not a pin\n")
    (checkout / "build/venv/bin/python").unlink()
    done = make(checkout, "trees", f"PYTHON={sys.executable}")
    assert "line is not `name==version`" in done.stderr
