# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and loaded models shared by the Muse tests."""

import os

# Before torch is imported: the emulated device reads its mode then.
os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES

torch.set_num_threads(1)


def pytest_runtest_teardown(item, nextitem):
    """Leave the process as it was found when the last test of this folder is done: others share it."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        from gates.cpu.beam.harness import release

        release()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Factory: (shape, mxfp4) -> checkpoint directory."""
    made = {}

    def make(shape: str, mxfp4: bool = False):
        if (shape, mxfp4) not in made:
            made[shape, mxfp4] = muse.write(tmp_path_factory.mktemp(f"muse-{shape}"), SHAPES[shape], mxfp4=mxfp4)
        return made[shape, mxfp4]

    return make


@pytest.fixture(scope="session")
def model(checkpoint):
    """Factory: (shape, mxfp4, dtype, settings...) -> loaded Harness, kept for the session."""
    from gates.cpu.beam.harness import Harness

    made = {}

    def make(shape: str, mxfp4: bool = False, dtype: str = "bfloat16", **environment: str):
        key = (shape, mxfp4, dtype, tuple(sorted(environment.items())))
        if key not in made:
            made[key] = Harness(checkpoint(shape, mxfp4), dtype, **environment)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tokens():
    """Factory: count -> ids [count] of the small vocabulary."""

    def make(count: int) -> torch.Tensor:
        return torch.randint(211, (count,), generator=torch.Generator().manual_seed(1017))

    return make
