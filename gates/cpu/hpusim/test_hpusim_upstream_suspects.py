# SPDX-License-Identifier: Apache-2.0
"""Two suspected faults of the unmodified upstreams, confirmed at their root without an engine.

They are pinned as they are: when an upstream release repairs one, its test fails and says what to delete.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

BLOCK = 128
PAD_BLOCK = 99


def decode_slots(scheduled: list[int], computed: list[int]) -> torch.Tensor:
    """KV slots [requests, widest] that the runner computes for a decode batch with `scheduled` tokens a request."""
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    class Runner(HPUModelRunner):
        def __init__(self):
            self.attn_block_size = BLOCK
            self._PAD_BLOCK_ID = PAD_BLOCK
            self._PAD_SLOT_ID = PAD_BLOCK * BLOCK
            self.device = torch.device("hpu")
            self.use_contiguous_pa = self.pin_memory = False
            self.uses_mrope = self.interleaved_sliding_window = self.model_has_chunked_attention = False
            self.use_async_scheduling = False
            self.num_mamba_like_layers = 0
            buckets = SimpleNamespace(find_decode_bucket=lambda batch, blocks, seed=False: (batch, 1, blocks))
            self.bucketing_manager = buckets
            self.defragmenter = SimpleNamespace(enabled=False, resolve=lambda b: b, resolve_all=lambda t: t)
            flat = [list(range(c, c + n)) for c, n in zip(computed, scheduled, strict=True)]
            self.positions_cpu = torch.tensor([position for row in flat for position in row])
            self.input_ids_cpu = torch.arange(sum(scheduled), dtype=torch.int32)

        def get_dp_padding(self, count):
            return 0

        def __getattr__(self, name):
            raise AttributeError(f"the runner reads {name!r}, which this test does not set")

    captured = {}
    runner = Runner()

    def keep(tables, slots, batch, block_size=None):
        captured["slots"] = torch.tensor(slots).view(len(scheduled), -1)
        raise StopIteration

    runner.get_habana_paged_attn_buffers = keep
    tables = torch.tensor([[10 + i] for i in range(len(scheduled))], dtype=torch.int32)
    with pytest.raises(StopIteration):
        runner._create_decode_input_data(len(scheduled), scheduled, np.array(computed), tables)
    return captured["slots"]


def test_ngram_padding_overwrites_position_zero_of_other_requests():
    """A request with fewer drafts than the widest one is padded with position 0, and position 0 becomes a slot.

    That slot is the request's own first token: every such step writes the key and value of a padding token over it.
    """
    slots = decode_slots(scheduled=[4, 2], computed=[20, 30])
    assert slots[0].tolist() == [10 * BLOCK + 20 + i for i in range(4)]
    assert slots[1, :2].tolist() == [11 * BLOCK + 30, 11 * BLOCK + 31]
    first_token = 11 * BLOCK
    assert slots[1, 2:].tolist() == [first_token, first_token], (
        "upstream no longer writes padding over position 0: delete this test and the mixed-batch n-gram one"
    )


def test_equal_drafts_need_no_padding_and_are_right():
    """Why a single request, or one draft token each, never showed the fault."""
    slots = decode_slots(scheduled=[2, 2], computed=[20, 30])
    assert slots.tolist() == [[10 * BLOCK + 20, 10 * BLOCK + 21], [11 * BLOCK + 30, 11 * BLOCK + 31]]


def mlp(sequence: int, hidden: int) -> torch.Size:
    """Shape that GPT-OSS's MLP block returns for the plug-in's [batch, sequence, hidden] input."""
    from vllm.model_executor.models.gpt_oss import MLPBlock

    block = SimpleNamespace(
        is_sequence_parallel=False,
        hidden_size=hidden,
        router=lambda x: x,
        experts=lambda hidden_states, router_logits: hidden_states,
    )
    return MLPBlock.forward(block, torch.zeros(1, sequence, hidden)).shape


def test_gpt_oss_cuts_the_sequence_at_the_hidden_size():
    """vLLM slices dimension 1 to undo padding of the hidden size; in the plug-in dimension 1 is the sequence."""
    assert mlp(sequence=8, hidden=8) == (1, 8, 8)
    assert mlp(sequence=12, hidden=8) == (1, 8, 8), (
        "upstream no longer cuts the sequence: delete this test and lower hidden_size in checkpoints.py"
    )
