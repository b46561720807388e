# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and Hugging Face models shared by the tests of the references."""

import pytest
import torch

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.beam_values import GRID

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def grid_checkpoint(tmp_path_factory):
    """Factory: (shape, seed) -> BF16 checkpoint directory with grid statistics."""
    made = {}

    def make(shape: str, seed: int, **layout):
        key = (shape, seed, tuple(sorted(layout.items())))
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{shape}-{seed}")
            made[key] = beam.write(folder, SHAPES[shape], seed=seed, how=GRID, **layout)
        return made[key]

    return make


@pytest.fixture(scope="session")
def published_model(grid_checkpoint):
    """Factory: (shape, seed, dtype) -> transformers' own Beam, eager attention and eager experts."""
    from transformers import BeamForCausalLM

    made = {}

    def make(shape: str, seed: int, dtype: torch.dtype = torch.bfloat16):
        key = (shape, seed, dtype)
        if key not in made:
            made[key] = BeamForCausalLM.from_pretrained(
                grid_checkpoint(shape, seed),
                dtype=dtype,
                attn_implementation="eager",
                experts_implementation="eager",
            ).eval()
        return made[key]

    return make


@pytest.fixture(scope="session")
def token_ids():
    """Factory: (seed, count, vocab) -> ids [count]."""

    def make(seed: int, count: int, vocab: int = 211) -> torch.Tensor:
        return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(1000 + seed))

    return make
