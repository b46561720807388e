# SPDX-License-Identifier: Apache-2.0
"""Environments: built once, rebuilt when broken or interrupted, and honest about what is in them."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import env as env_verb
from scripts import environment
from scripts.environment import Environment
from scripts.errors import ToolError
from scripts.paths import Project
from scripts.tiny_wheel import tiny_wheel

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every command the module runs, in order; they run for real, but with this interpreter's pip, to save time."""
    seen: list[list[str]] = []
    real = environment._run

    def run(env: Environment, command: list[str]) -> None:
        seen.append(command)
        if command[1:3] == ["-m", "venv"]:
            real(env, [*command[:3], "--without-pip", *command[3:]])
        else:
            real(env, [sys.executable, "-m", "pip", "--python", command[0], *command[3:]])

    monkeypatch.setattr(environment, "_run", run)
    return seen


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]) -> Environment:
    """An environment `small` of two tiny wheels, served from a folder."""
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "2.0"):
        tiny_wheel(index, "alpha", version)
    tiny_wheel(index, "beta", "1.5+cpu", requires=("gamma",))  # gamma does not exist: dependencies must not be followed
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/small.txt").write_text("alpha==1.0  # why\nbeta==1.5\n")
    small = Environment("small", "small", "requirements/small.txt", "a test")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setitem(environment.ENVIRONMENTS, "small", small)
    return small


def test_built_once_and_left_alone(env: Environment, calls: list[list[str]]) -> None:
    environment.ensure("small")
    assert environment.installed(env.path)["alpha"] == "1.0"
    assert environment.mismatches(env) == [], "a local suffix of the index counts as the pinned release"
    made = len(calls)
    assert made == 2, "venv and one pip"
    environment.ensure("small")
    assert len(calls) == made
    assert environment.check("small") == env


def break_stamp(env: Environment) -> None:
    env.stamp.unlink()


def break_distribution(env: Environment) -> None:
    next(env.path.glob("lib/*/site-packages/alpha-1.0.dist-info")).rename(env.path / "gone")


def break_version(env: Environment) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(env.interpreter), "install", "-qq", "--no-deps", "alpha==2.0"]
    subprocess.run(pip, check=True)


def break_interpreter(env: Environment) -> None:
    env.interpreter.unlink()


def break_list(env: Environment) -> None:
    (environment.ROOT / env.requirements).write_text("alpha==2.0\nbeta==1.5\n")


BREAKS: dict[str, tuple[Callable[[Environment], None], str]] = {
    "interrupted installation": (break_stamp, "its installation did not finish"),
    "distribution removed": (break_distribution, "alpha: 1.0 wanted, missing"),
    "another version installed": (break_version, "alpha: 1.0 wanted, 2.0 found"),
    "interpreter gone": (break_interpreter, "not built"),
    "list changed": (break_list, "requirements/small.txt has changed"),
}


def check_repair(env: Environment, fault: str) -> None:
    """`fault` is named with the command that repairs it, and repaired."""
    environment.ensure("small")
    break_it, says = BREAKS[fault]
    break_it(env)
    with pytest.raises(ToolError, match=re.escape(says)) as caught:
        environment.check("small")
    assert caught.value.action == "run `make env`"
    environment.ensure("small")
    assert environment.problem(env) is None
    assert environment.mismatches(env) == []


@pytest.mark.parametrize("fault", BREAKS)
def test_a_broken_environment_is_named_and_rebuilt(env: Environment, fault: str) -> None:
    check_repair(env, fault)


def test_an_extra_is_built_by_name_only_and_says_so(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    known = dict(environment.ENVIRONMENTS)
    monkeypatch.setattr(environment, "ensure", lambda name, python=None: built.append(name) or known[name])
    monkeypatch.setattr(env_verb, "ensure_serve", lambda project, python=None: environment.ensure("serve"))
    project = Project(environment.ROOT, environment.ROOT / "cache", {})
    for names in ([], ["accuracy"]):
        env_verb.run(project, argparse.Namespace(names=names, python=None, check=False))
    assert built == ["dev", "build", "hf", "serve", "accuracy"]
    with pytest.raises(ToolError, match="not built") as caught:
        environment.check("accuracy")
    assert caught.value.action == "run `python -m scripts env accuracy`"


@pytest.mark.parametrize("fault", ["interrupted installation", "another version installed"])
def test_control_a_trusting_tool_is_caught(env: Environment, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """With existence as the only proof, as a plain `make` rule has it, the same check fails."""
    monkeypatch.setattr(environment, "problem", lambda env: None if env.interpreter.exists() else "not built")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_repair(env, fault)


def test_a_failed_installation_leaves_no_stamp(env: Environment) -> None:
    (environment.ROOT / env.requirements).write_text("alpha==3.0\n")
    with pytest.raises(ToolError, match="environment `small`"):
        environment.ensure("small")
    assert not env.stamp.exists()
    assert environment.problem(env) == "its installation did not finish"


def test_an_interpreter_that_is_missing_is_asked_for(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.ENVIRONMENTS, "small", dataclasses.replace(env, python=(3, 99)))
    with pytest.raises(ToolError, match=r"python3\.99 is needed") as caught:
        environment.ensure("small")
    assert "PYTHON=" in caught.value.action


def test_the_images_torch_is_used_where_asked(
    env: Environment, monkeypatch: pytest.MonkeyPatch, calls: list[list[str]]
) -> None:
    monkeypatch.setenv(environment.SYSTEM_TORCH, "system")
    (environment.ROOT / env.requirements).write_text("torch==9.9\nalpha==1.0\n")
    environment.ensure("small")
    assert "--system-site-packages" in calls[0]
    assert "torch" not in environment.installed(env.path)
    assert environment.problem(env) is None
    monkeypatch.delenv(environment.SYSTEM_TORCH)
    assert environment.problem(env) is not None, "the two kinds are not mistaken for each other"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("alpha>=1.0", "not `name==version`"),
        ("alpha", "not `name==version`"),
        ("-r other.txt", "not `name==version`"),
        ('alpha==1.0; sys_platform == "linux"', "marker not understood"),
    ],
)
def test_a_line_that_needs_resolving_is_refused(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "loose.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(ToolError, match=says) as caught:
        environment.pins(path)
    assert caught.value.where == "loose.txt:2"


def test_markers_select_by_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text('old==1; python_version < "3.2"\nnew==1; python_version < "3.99"\nplain==1\n')
    assert set(environment.pins(path)) == {"new", "plain"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_list_is_complete_and_says_why(path: Path) -> None:
    """Pins only, each once; those above the line `What those need` each have a reason."""
    assert environment.pins(path)
    direct, _, _ = path.read_text().partition("# What those need")
    for line in direct.splitlines():
        if line and not line.startswith("#"):
            assert re.search(r"\s# \S", line), f"{path.name}: no reason on {line!r}"
    names = [line.partition("==")[0] for line in path.read_text().splitlines() if "==" in line]
    assert len({environment.normalise(name) for name in names}) == len(names)


def test_image_and_serving_lists_agree() -> None:
    """What is tested without a Gaudi is what the image gets; torch stays the base image's."""
    serve = environment.pins(ROOT / "requirements/serve.txt")
    image = environment.pins(ROOT / "requirements/image.txt")
    only_image = {name: version for name, version in image.items() if serve.get(name) != version}
    assert only_image == {"six": "1.17.0"}, "vLLM asks for six from Python 3.12 on"
    assert not {name for name in image if name.startswith(("torch", "triton", "nvidia"))}


def test_the_gates_list_has_all_that_the_gates_import() -> None:
    """A machine with a server's address and this list can ask, judge and report; only mutated builds want more."""
    mutated = {ROOT / "gates/controls/mutants.py", ROOT / "gates/controls/mutated.py"}
    found: set[str] = set()
    for folder in ("gates", "gates/core", "gates/device", "gates/report", "gates/controls"):
        for path in set((ROOT / folder).glob("*.py")) - mutated:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(str(node.module).partition(".")[0])
    wanted = {environment.normalise(name) for name in found - set(sys.stdlib_module_names) - {"gates", "scripts"}}
    assert {"httpx", "openai", "matplotlib"} <= wanted
    assert wanted <= set(environment.pins(ROOT / "requirements/gates.txt"))


def test_the_tool_that_builds_environments_needs_only_the_standard_library() -> None:
    """It runs before anything is installed."""
    command = [sys.executable, "-I", "-S", "-c"]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import scripts.environment; print('ok')"
    assert subprocess.run([*command, program], capture_output=True, text=True, check=False).stdout == "ok\n"


def test_command_line_tells_and_changes_nothing_on_check(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.environment", "--check", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_stamp_is_written_last(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between pip's end and the stamp everything has been compared with the list."""
    monkeypatch.setattr(environment, "mismatches", lambda env: ["alpha: 1.0 wanted, 9 found"])
    with pytest.raises(ToolError, match="differs from its list"):
        environment.ensure("small")
    assert not env.stamp.exists()


def test_stamp_names_interpreter(env: Environment) -> None:
    environment.ensure("small")
    assert Path(json.loads(env.stamp.read_text())["python"]).exists()
