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


def test_cache_is_keyed_by_source_and_torch(tmp_path, monkeypatch):
    before = build.key()
    for name in (*build.SOURCES, "device.h"):
        shutil.copy(build._HERE / name, tmp_path / name)
    monkeypatch.setattr(build, "_HERE", tmp_path)
    assert build.key() == before
    (tmp_path / "device.h").write_text((tmp_path / "device.h").read_text() + "// changed\n")
    assert build.key() != before
