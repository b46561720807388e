# SPDX-License-Identifier: Apache-2.0
"""The strict lane: a real `hpu:0` device. The checks run in one process of its own (native_checks.py)."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hpusim_ops import ROOT

from gates.hpusim.native import build

SCRIPT = Path(__file__).parent / "native_checks.py"
CHECKS = [node.name for node in ast.parse(SCRIPT.read_text()).body
          if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]  # fmt: skip

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None or shutil.which("ninja") is None, reason="no C++ compiler or no ninja"
)


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    values = {**os.environ, "HPUSIM_NATIVE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *command], env=values, capture_output=True, text=True, cwd=ROOT, timeout=900)


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Traceback, or nothing, of every check; builds the extension when this user has not yet."""
    done = run([str(SCRIPT)])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("name", CHECKS)
def test_native(results, name):
    assert not results[name], results[name]


@pytest.mark.long
@needs_compiler
def test_every_check_ran(results):
    assert sorted(results) == sorted(CHECKS)
    assert len(CHECKS) > 8


def test_a_missing_compiler_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setenv("HPUSIM_NATIVE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        build.BuildError, match="needs no-such-compiler to build the native device: install it or unset"
    ):
        build.load()
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_with_a_wrapper_and_a_ninja_of_the_environment_are_found(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("wrapper", "python", "ninja"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "ninja").rename(tmp_path / "ninja")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", "wrapper g++")
    monkeypatch.setattr(build.sys, "executable", str(tmp_path / "python"))
    build.tools()
    (tmp_path / "ninja").unlink()
    with pytest.raises(build.BuildError, match="needs ninja"):
        build.tools()


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HPUSIM_NATIVE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(build, "tools", lambda: None)
    with pytest.raises(build.BuildError, match="name another folder in HPUSIM_NATIVE_CACHE"):
        build.load()


@pytest.mark.long
@needs_compiler
def test_a_build_that_was_killed_does_not_block_the_next(tmp_path):
    """Torch's own lock file would; also: two processes that build at once end with one library."""
    folder = tmp_path / build.key()
    folder.mkdir()
    for left in ("lock", "building"):
        (folder / left).touch()
    script = "import torch; print(torch.ones(2, device='hpu').device)"
    environment = {**os.environ, "HPUSIM_NATIVE": "1", "HPUSIM_NATIVE_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=600)[0].strip() for process in started] == ["hpu:0", "hpu:0"]
    assert [path.name for path in folder.glob("*.so")] == ["hpusim_native.so"]


def test_cache_is_keyed_by_source_and_torch(tmp_path, monkeypatch):
    before = build.key()
    for name in (*build.SOURCES, "device.h"):
        shutil.copy(build._HERE / name, tmp_path / name)
    monkeypatch.setattr(build, "_HERE", tmp_path)
    assert build.key() == before
    (tmp_path / "device.h").write_text((tmp_path / "device.h").read_text() + "// changed\n")
    assert build.key() != before
