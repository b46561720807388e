# SPDX-License-Identifier: Apache-2.0
"""Both device models give the same tokens: one engine start per lane and architecture."""

from __future__ import annotations

import random

import pytest
from test_hpusim_native import needs_compiler

from gates.hpusim import checkpoints, testing

pytestmark = [pytest.mark.engine, pytest.mark.long, needs_compiler]


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_the_strict_lane_gives_the_tokens_of_the_pure_one(architecture, tmp_path):
    """The strict lane also refuses every operator that mixes host and device tensors, so the plug-in has none here."""
    model = checkpoints.make(architecture, tmp_path, num_hidden_layers=2)
    source = random.Random(2)
    prompts = [[source.randrange(8, 512) for _ in range(length)] for length in (5, 40, 130)]
    batch = {"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 16, "ignore_eos": True}}
    runs = {
        lane: testing.run_engine(model, [batch], mode="lazy_eager", env={"HPUSIM_NATIVE": lane}, max_model_len=512)
        for lane in ("0", "1")
    }
    assert runs["1"].tokens(0) == runs["0"].tokens(0)
    assert len({tuple(tokens) for tokens in runs["0"].tokens(0)}) == len(prompts)
