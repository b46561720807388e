# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the runner gates: the serving environment on the emulated Gaudi, without starting an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@pytest.fixture(scope="session")
def checkpoints_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def llama(checkpoints_root: Path) -> Path:
    from gates.hpusim import checkpoints

    return checkpoints.make("llama", checkpoints_root, num_hidden_layers=1, hidden_size=32, intermediate_size=32)


@pytest.fixture
def make_engine(llama: Path) -> Callable[..., Any]:
    """Build a ToyEngine: `make_engine(asynchronous, blocks, **engine arguments)`."""

    def make(asynchronous: bool, blocks: int = 24, **arguments: Any) -> Any:
        from gates.cpu.runner.toy_engine import ToyEngine, vllm_config

        return ToyEngine(vllm_config(llama, async_scheduling=asynchronous, **arguments), blocks)

    return make


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set settings of the runner patches for one test: `settings(EXACT_WINDOW="on")`."""
    from vllm_gaudi.runtime import settings as module

    def put(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(module.PREFIX + name, value)
        module.current.cache_clear()

    module.current.cache_clear()
    yield put
    monkeypatch.undo()
    module.current.cache_clear()


@pytest.fixture
def windowed(checkpoints_root: Path, settings: Callable[..., None]) -> Callable[..., Any]:
    """`windowed(window, asynchronous, blocks, **engine)`: toy engine of a model with window and full layers."""
    from gates.cpu.runner.toy_engine import ToyEngine, vllm_config
    from gates.cpu.runner.window_toy import window_checkpoint

    settings(EXACT_WINDOW="on")

    def make(window: int, asynchronous: bool = False, blocks: int = 200, **engine: Any) -> Any:
        folder = window_checkpoint(checkpoints_root, window)
        values = {"max_num_seqs": 4, **engine}
        return ToyEngine(vllm_config(folder, async_scheduling=asynchronous, **values), blocks, window=window)

    return make


@pytest.fixture
def forward_state() -> Iterator[Any]:
    """The process's forward state, restored afterwards."""
    from vllm_gaudi.runtime.forward_state import STATE

    saved = dict(vars(STATE))
    STATE.events = []
    yield STATE
    vars(STATE).update(saved)
