# SPDX-License-Identifier: Apache-2.0
"""Guard of the registration patch: the built package announces an entry point that reaches the overlay."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import types
from pathlib import Path

import pytest


@pytest.fixture
def tree() -> Path:
    """The patched vllm-gaudi tree: the one under guard, or the built one."""
    path = Path(os.environ.get("FRONTIER_TREE_VLLM_GAUDI", "build/trees/vllm-gaudi"))
    if not (path / "setup.py").is_file():
        pytest.skip("no vllm-gaudi tree: run `python -m scripts trees`")
    return path


def entry_points(tree: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What setup.py hands to setuptools as entry points, without building anything."""
    seen: dict[str, dict[str, list[str]]] = {}
    setuptools = types.ModuleType("setuptools")
    setuptools.setup = lambda **words: seen.update(words)  # type: ignore[attr-defined]
    setuptools.find_packages = lambda **words: []  # type: ignore[attr-defined]
    scm = types.ModuleType("setuptools_scm")
    scm.get_version = lambda **words: "0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "setuptools", setuptools)
    monkeypatch.setitem(sys.modules, "setuptools_scm", scm)
    runpy.run_path(str(tree / "setup.py"))
    return seen["entry_points"]


def test_entry_point_reaches_the_distribution(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = dict(
        line.replace(" ", "").split("=", 1) for line in entry_points(tree, monkeypatch)["vllm.general_plugins"]
    )
    ours = [name for name, target in plugins.items() if target == "vllm_gaudi.distribution:register"]
    assert ours == [max(plugins)], "registered once, and last by name: after the plug-in's own four"
    # vllm_gaudi itself needs vLLM: load the package of the entry point alone.
    package = types.ModuleType("vllm_gaudi")
    package.__path__ = [str(tree.resolve() / "vllm_gaudi")]  # type: ignore[attr-defined]
    for name in [n for n in sys.modules if n == "vllm_gaudi" or n.startswith("vllm_gaudi.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm_gaudi", package)
    assert callable(importlib.import_module("vllm_gaudi.distribution").register)
