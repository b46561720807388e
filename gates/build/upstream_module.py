# SPDX-License-Identifier: Apache-2.0
"""Import one module of the patched vllm-gaudi tree where neither torch nor vLLM is installed."""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path

import pytest


def tree() -> Path:
    """The patched vllm-gaudi tree: the one a guard run names, or the built one. Skips when there is none."""
    path = Path(os.environ.get("FRONTIER_TREE_VLLM_GAUDI", "build/trees/vllm-gaudi")).resolve()
    if not (path / "setup.py").is_file():
        pytest.skip("no vllm-gaudi tree: run `python -m scripts trees`")
    return path


def bare_package(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Make `vllm_gaudi` importable from `root` without running its __init__, which needs vLLM."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm_gaudi"]:
        monkeypatch.delitem(sys.modules, name)
    package = types.ModuleType("vllm_gaudi")
    package.__path__ = [str(root / "vllm_gaudi")]
    monkeypatch.setitem(sys.modules, "vllm_gaudi", package)


def stub(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> types.ModuleType:
    """Put a stand-in module with `members` in place of `name`."""
    module = types.ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def load(name: str) -> types.ModuleType:
    """Import a module of the tree prepared by :func:`bare_package`."""
    return importlib.import_module(name)
