# SPDX-License-Identifier: Apache-2.0
"""The series on a newer pair: it is carried without a conflict, its guards pass there, and it serves right tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gates.hpusim.pair import PLUGIN, VLLM

pytestmark = [pytest.mark.long, pytest.mark.network]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process on both carried trees."""
    from gates.cpu.runner import newer_pair
    from scripts.errors import Exit, ToolError

    try:
        return newer_pair.lay(tmp_path_factory.mktemp("pair"), {"vllm": VLLM, "vllm-gaudi": PLUGIN})
    except ToolError as error:
        if error.code != Exit.UNREACHABLE:
            raise
        pytest.skip(f"a source is unreachable: {error}")


def _pytest(environ: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


def test_the_processes_run_the_pair(environ: dict[str, str]) -> None:
    code = "import vllm, vllm_gaudi.runtime; print(vllm.__version__, vllm.__file__, vllm_gaudi.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    version, *files = done.stdout.splitlines()[-1].split()
    folder = environ["PYTHONPATH"].partition(os.pathsep)[0]
    assert version == VLLM
    assert all(Path(file).is_relative_to(folder) for file in files)


def test_guards(environ: dict[str, str]) -> None:
    from gates.cpu.runner import newer_pair

    _pytest(environ, newer_pair.TESTS, *newer_pair.OTHERS, "-m", "not long and not engine")


def test_served(environ: dict[str, str]) -> None:
    """Prefix cache with preemption, and windows against Hugging Face, through the engine of the pair."""
    _pytest(environ, "gates/cpu/runner/test_runner_served.py", "-m", "not long")


@pytest.mark.parametrize(
    ("file", "words"), [("beam/test_beam_served.py", "fp8_on_one_rank"), ("muse/test_muse_served.py", "served_text")]
)
def test_both_models_served(environ: dict[str, str], file: str, words: str) -> None:
    """A small Beam and a small Muse Spark on the pair, scored against the references as on the pinned one."""
    _pytest(environ, f"gates/cpu/{file}", "-k", words)
