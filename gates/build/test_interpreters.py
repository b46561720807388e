# SPDX-License-Identifier: Apache-2.0
"""An interpreter that cannot make an environment is refused before anything is built, by name and with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool
from scripts import environment
from scripts.environment import Environment
from scripts.errors import ToolError

ANY = Environment("small", "small", "requirements/small.txt", "a test")
ONLY_311 = Environment("exact", "exact", "requirements/small.txt", "a test", (3, 11))

CASES = {
    "missing": (ANY, None, "cannot be run: No such file or directory"),
    "no program": (ANY, 0o644, "cannot be run: Permission denied"),
    "silent": (ANY, "exit 1", "ended with 1 and said: nothing"),
    "no Python": (ANY, "echo hello; exit 0", "ended with 0 and said: hello"),
    "too old": (ANY, "echo python 3 9", "is Python 3.9, environment `small` takes Python 3.10 to 3.13"),
    "too new": (ANY, "echo python 3 14", "is Python 3.14, environment `small` takes Python 3.10 to 3.13"),
    "another": (ONLY_311, "echo python 3 12", "is Python 3.12, environment `exact` takes Python 3.11"),
    "no venv": (
        ANY,
        "echo python 3 12; echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1",
        "cannot make virtual environments: ModuleNotFoundError: No module named 'ensurepip'",
    ),
}


@pytest.mark.parametrize("kind", list(CASES))
def test_refused_before_anything_is_built(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, body, says = CASES[kind]
    python = tmp_path / "a python"
    if body is not None:
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(body if isinstance(body, int) else 0o755)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/small.txt").write_text("alpha==1.0\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setitem(environment.ENVIRONMENTS, env.name, env)
    with pytest.raises(ToolError) as caught:
        environment.ensure(env.name, str(python))
    assert says in caught.value.what
    assert str(python) in caught.value.where
    assert "PYTHON=" in caught.value.action
    assert not env.path.exists()


def test_this_interpreter_passes() -> None:
    environment.probe(ANY, sys.executable)


def test_markers_are_judged_for_the_environments_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of 3.10 wants what 3.10 needs, whichever Python looks at it."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/small.txt").write_text('old==1.0; python_version < "3.11"\n')
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    packages = ANY.path / "lib/python3.10/site-packages"
    packages.mkdir(parents=True)
    assert environment.mismatches(ANY) == ["old: 1.0 wanted, missing"]
    (packages / "old-1.0.dist-info").mkdir()
    assert environment.mismatches(ANY) == []
    packages.parent.rename(ANY.path / "lib/python3.12")
    (ANY.path / "lib/python3.12/site-packages/old-1.0.dist-info").rmdir()
    assert environment.mismatches(ANY) == []


def test_the_interpreter_of_the_running_tool_is_not_changed_in_silence(demo: Demo, tool: Tool) -> None:
    error = tool.refused(demo, "env", "dev", "--python", "/no/such", code=2)
    assert "--python has no effect on `dev`" in error
