# SPDX-License-Identifier: Apache-2.0
"""Guard of the forward-state patch: the runtime knows the forward before the model runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch


@pytest.mark.parametrize(("prompt", "warmup"), [(True, False), (False, False), (True, True)])
def test_forward_is_announced(make_engine, forward_state, prompt: bool, warmup: bool) -> None:
    from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    runner = make_engine(False, 64).runner
    seen = []

    def forward(**kwargs):
        seen.append((forward_state.is_prompt, forward_state.graphs, forward_state.bounded))
        return torch.zeros(1, 256, 4, device="hpu")

    runner.model = SimpleNamespace(forward=forward, compute_logits=lambda hidden: hidden)
    runner.is_driver_worker = False
    runner.use_aux_hidden_state_outputs = False
    forward_state.run_ahead_depth = 2
    ids = torch.zeros(1, 256, dtype=torch.int32, device="hpu")
    values = {name: None for name in HPUAttentionMetadataV1.__dataclass_fields__}
    values.update(is_prompt=prompt, block_size=16, slot_mapping=ids, block_list=None, input_positions=None)
    metadata = HPUAttentionMetadataV1(**values)
    HPUModelRunner._execute_model_generic(
        runner, ids, ids, metadata, torch.tensor([0], device="hpu"), [], None, None, warmup_mode=warmup
    )
    assert seen == [(prompt, False, prompt and not warmup)]
