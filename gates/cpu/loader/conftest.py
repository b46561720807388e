# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of both models, and models loaded from them as any rank of a node would."""

import os
import sys
from pathlib import Path

# Before torch is imported: the emulated device reads its mode then.
os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "beam"))

import pytest
import torch
from harness import release
from rank_model import SHAPE, build

from gates.checkpoints import beam, muse
from gates.checkpoints.beam_values import HOSTILE
from gates.checkpoints.muse_shapes import SHAPES as MUSE_SHAPES

torch.set_num_threads(1)


def pytest_runtest_teardown(item, nextitem):
    """Leave the process as it was found when the last test of this folder is done: others share it."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        release()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Factory: layout -> checkpoint directory; `mxfp4=...` makes it one of Muse Spark."""
    made = {}

    def make(**layout):
        key = tuple(sorted(layout.items(), key=str))
        if key not in made and "mxfp4" in layout:
            made[key] = muse.write(tmp_path_factory.mktemp("muse"), MUSE_SHAPES["tiny"], **layout)
        elif key not in made:
            made[key] = beam.write(tmp_path_factory.mktemp("beam"), SHAPE, how=HOSTILE, **layout)
        return made[key]

    return make


@pytest.fixture
def empty_model():
    """Factory: (folder, tp, rank, expert parallel) -> a built model whose parameters hold no checkpoint yet."""
    return build
