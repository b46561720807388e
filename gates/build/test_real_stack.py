# SPDX-License-Identifier: Apache-2.0
"""The real stack on the real upstreams. SKIP with the reason where a source cannot be reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gates.build.demo import ROOT

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif("FRONTIER_TREE_VLLM_GAUDI" in os.environ, reason="inside a guard"),
]


def scripts(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_verify(real_trees: Path) -> None:
    done = scripts("verify")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": ok, ") == 12


def test_export_changes_no_byte(real_trees: Path) -> None:
    done = scripts("export")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_trees_with_nothing_to_do(real_trees: Path) -> None:
    done = scripts("trees")
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["unchanged", "unchanged"]


def light_patches() -> list[str]:
    """Patches whose guard runs in this environment; the others are guarded where torch is."""
    found = []
    for path in sorted((ROOT / "patches").glob("*/*.patch")):
        head = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
        if "\nGuard: gates/build/" in head:
            found.append(f"{path.parent.name}/{path.stem}")
    return found


@pytest.mark.parametrize("patch", light_patches())
def test_guard(real_trees: Path, patch: str) -> None:
    done = scripts("guard", patch)
    assert f"{patch} PASS" in done.stdout, done.stdout + done.stderr


def test_unreachable_source_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    """With the source blocked and nothing cached the source-bound gates skip, the rest passes."""
    config = tmp_path / "gitconfig"
    config.write_text('[url "/nonexistent/blocked"]\n\tinsteadOf = https://github.com/vllm-project/vllm-gaudi\n')
    env = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": str(config),
        "VLLM_GAUDI_FRONTIER_CACHE": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "gates/build/test_real_stack.py::test_verify",
               "gates/build/test_guard_bucket_file.py", "gates/build/test_api_drift.py"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "SKIPPED" in done.stdout
    assert "source unreachable" in done.stdout
    assert " passed" in done.stdout
