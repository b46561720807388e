# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, models and recorded passes shared by the Beam tests."""

import os

# Before torch is imported: the emulated device reads its mode then.
os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import pytest
import torch
from harness import Harness, release
from step_checks import Pass

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.beam_values import GRID, HOSTILE, SERVED
from gates.oracle.beam.model import BeamReference

torch.set_num_threads(1)
STATISTICS = {"grid8": GRID, "grid6": GRID, "served": SERVED, "awkward": HOSTILE}


def pytest_runtest_teardown(item, nextitem):
    """Leave the process as it was found when the last test of this folder is done: others share it."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        release()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Factory: (shape, seed, layout...) -> checkpoint directory."""
    made = {}

    def make(shape: str, seed: int = 17, **layout):
        key = (shape, seed, tuple(sorted(layout.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"beam-{shape}")
            made[key] = beam.write(folder, SHAPES[shape], seed=seed, how=STATISTICS[shape], **layout)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tokens():
    """Factory: (seed, count, vocabulary) -> ids [count]."""

    def make(seed: int, count: int, vocabulary: int = 211) -> torch.Tensor:
        return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(1000 + seed))

    return make


@pytest.fixture(scope="session")
def model(checkpoint):
    """Factory: (shape, seed, dtype, fp8, settings...) -> loaded Harness, kept for the session."""
    made = {}

    def make(shape: str, seed: int = 17, dtype: str = "bfloat16", fp8: bool = False, **environment: str) -> Harness:
        key = (shape, seed, dtype, fp8, tuple(sorted(environment.items())))
        if key not in made:
            made[key] = Harness(checkpoint(shape, seed, fp8=fp8), dtype, **environment)
        return made[key]

    return make


@pytest.fixture(scope="session")
def run_pass(model, checkpoint, tokens):
    """Factory: (shape, seed, count, fp8, settings...) -> recorded Pass beside the reference."""
    made = {}

    def make(shape: str, seed: int, count: int, fp8: bool = False, **environment: str) -> Pass:
        key = (shape, seed, count, fp8, tuple(sorted(environment.items())))
        if key not in made:
            harness = model(shape, seed, fp8=fp8, **environment)
            reference = BeamReference(checkpoint(shape, seed, fp8=fp8), "w8a8" if fp8 else "bf16")
            made[key] = Pass(harness, reference, tokens(seed, count))
        return made[key]

    return make
