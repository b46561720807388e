# SPDX-License-Identifier: Apache-2.0
"""Guard of the forward-state patch: the runtime knows the forward before the model runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def _forward(runner: Any, seen: Callable[[], Any], prompt: bool = True, warmup: bool = False) -> Any:
    """Run a forward of `runner` through upstream's code; returns what `seen` returns inside the model."""
    from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    found = []

    def forward(**kwargs):
        found.append(seen())
        return torch.zeros(1, 256, 4, device="hpu")

    runner.model = SimpleNamespace(forward=forward, compute_logits=lambda hidden: hidden)
    runner.is_driver_worker = False
    runner.use_aux_hidden_state_outputs = False
    ids = torch.zeros(1, 256, dtype=torch.int32, device="hpu")
    values = {name: None for name in HPUAttentionMetadataV1.__dataclass_fields__}
    values.update(is_prompt=prompt, block_size=16, slot_mapping=ids, block_list=None, input_positions=None)
    metadata = HPUAttentionMetadataV1(**values)
    HPUModelRunner._execute_model_generic(
        runner, ids, ids, metadata, torch.tensor([0], device="hpu"), [], None, None, warmup_mode=warmup
    )
    (one,) = found
    return one


@pytest.mark.parametrize(("prompt", "warmup"), [(True, False), (False, False), (True, True)])
def test_forward_is_announced(make_engine, forward_state, settings, prompt: bool, warmup: bool) -> None:
    settings(RUN_AHEAD_DEPTH="2")
    runner = make_engine(False, 64).runner
    state = forward_state
    seen = _forward(runner, lambda: (state.is_prompt, state.graphs, state.bounded), prompt, warmup)
    assert seen == (prompt, False, prompt and not warmup)


def test_limits_are_those_of_the_model_that_runs(make_engine, forward_state, settings) -> None:
    """A worker that switches between models does not load the one it returns to again."""
    from vllm_gaudi.runtime import gates

    def limits() -> tuple:
        state = forward_state
        return state.long_attention, state.run_ahead_depth, state.decode_layers_per_graph, state.kv_groups

    settings()
    ours, other = make_engine(False, 64).runner, make_engine(False, 64).runner
    ours.vllm_config.model_config.hf_text_config.model_type = "beam"
    assert gates.is_frontier(ours.vllm_config)
    ours.__dict__["_frontier_kv_groups"] = groups = object()
    for runner, want in ((ours, (True, 2, 0, groups)), (other, (False, 0, 1, None)), (ours, (True, 2, 0, groups))):
        assert _forward(runner, limits) == want
