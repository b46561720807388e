# SPDX-License-Identifier: Apache-2.0
"""Guard of the registration patch: the built package announces an entry point that reaches the overlay."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gates.build import upstream_module


def entry_points(tree: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What setup.py hands to setuptools as entry points, without building anything."""
    seen: dict[str, dict[str, list[str]]] = {}
    upstream_module.stub(
        monkeypatch, "setuptools", setup=lambda **words: seen.update(words), find_packages=lambda **words: []
    )
    upstream_module.stub(monkeypatch, "setuptools_scm", get_version=lambda **words: "0")
    runpy.run_path(str(tree / "setup.py"))
    return seen["entry_points"]


def test_entry_point_reaches_the_distribution(monkeypatch: pytest.MonkeyPatch, real_trees: Path) -> None:
    tree = upstream_module.tree()
    plugins = dict(
        line.replace(" ", "").split("=", 1) for line in entry_points(tree, monkeypatch)["vllm.general_plugins"]
    )
    ours = [name for name, target in plugins.items() if target == "vllm_gaudi.distribution:register"]
    assert ours == [max(plugins)], "registered once, and last by name: after the plug-in's own four"
    upstream_module.bare_package(monkeypatch, tree)
    assert callable(upstream_module.load("vllm_gaudi.distribution").register)
