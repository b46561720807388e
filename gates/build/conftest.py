# SPDX-License-Identifier: Apache-2.0
"""Shared by the gates of the tool: demo projects, and the real sources where they can be reached."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import ROOT, Demo, Tool, patched


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two ready projects to copy: `bare` without, `patched` with three patches and an overlay."""
    tool = Tool()
    bare = Demo(tmp_path_factory.mktemp("bare"))
    bare.create()
    full = Demo(tmp_path_factory.mktemp("patched"))
    full.create()
    patched(full, tool)
    return {"bare": bare.folder, "patched": full.folder}


def _copy(template: Path, folder: Path) -> Demo:
    shutil.copytree(template, folder, symlinks=True)
    demo = Demo(folder)
    lock = demo.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(f'address = "{template}', f'address = "{folder}'))
    return demo


@pytest.fixture
def demo_maker(templates: dict[str, Path], tmp_path: Path) -> Callable[..., Demo]:
    """Makes demo projects: maker("patched") or maker("bare")."""
    count = iter(range(1000))

    def make(kind: str = "patched") -> Demo:
        demo = _copy(templates[kind], tmp_path / f"demo{next(count)}")
        if kind == "patched":
            Tool().ok(demo, "lock")  # the address, which the lock hash covers, has moved with the copy
        return demo

    return make


@pytest.fixture
def demo(demo_maker: Callable[..., Demo]) -> Demo:
    """A project with three patches and an overlay, its tree built."""
    return demo_maker("patched")


@pytest.fixture
def bare(demo_maker: Callable[..., Demo]) -> Demo:
    """A project without patches, nothing fetched."""
    return demo_maker("bare")


@pytest.fixture
def tool() -> Tool:
    """The tool as it is."""
    return Tool()


def fetch_or_skip(*names: str) -> None:
    """Have the real sources in the cache, or skip with the reason they cannot be reached."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts", "fetch", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 4:
        pytest.skip("source unreachable: " + " ".join(done.stderr.split("error: ")[-1].split()))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def real_trees() -> Path:
    """The real patched trees, built; skips where a source cannot be reached. A guard run brings its own."""
    if not os.environ.get("FRONTIER_TREE_VLLM_GAUDI"):
        fetch_or_skip()
        subprocess.run([sys.executable, "-m", "scripts", "trees"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "build" / "trees"
