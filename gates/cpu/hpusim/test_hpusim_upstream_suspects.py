# SPDX-License-Identifier: Apache-2.0
"""Faults of the unmodified upstreams, confirmed at their root without an engine.

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


@pytest.fixture
def tiny_attention():
    """Arguments of an attention call: a module with 4 heads over 2 KV heads, q, k, v [1, heads, 5, 8], no mask."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(1, 4, 5, 8, generator=generator)
    k, v = (torch.randn(1, 2, 5, 8, generator=generator) for _ in range(2))
    return SimpleNamespace(num_key_value_groups=2, is_causal=True, training=False), q, k, v, None


def test_the_plugin_replaces_sdpa_of_every_hugging_face_model_in_the_process(monkeypatch, tiny_attention):
    """Importing vLLM with the plug-in is enough; the replacement then fails with the transformers that serves here."""
    from transformers.integrations import sdpa_attention
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from vllm_gaudi import patches

    monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", sdpa_attention.sdpa_attention_forward)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", ALL_ATTENTION_FUNCTIONS["sdpa"])
    patches._patch_sdpa_attention_forward()
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is patches._hpu_sdpa_attention_forward
    with pytest.raises(ImportError, match="create_position_bias_mask"):
        ALL_ATTENTION_FUNCTIONS["sdpa"](*tiny_attention, scaling=0.3)


def test_the_replacement_is_right_once_transformers_has_its_names(monkeypatch, tiny_attention):
    """The control: with the two names as later releases have them it computes what eager attention computes."""
    from transformers.integrations import sdpa_attention

    from vllm_gaudi import patches

    monkeypatch.setattr(sdpa_attention, "create_position_bias_mask", None, raising=False)
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda attention_mask, key, value: False)
    _, q, k, v, _ = tiny_attention
    got, _ = patches._hpu_sdpa_attention_forward(*tiny_attention, scaling=0.3)
    keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = (q @ keys.transpose(2, 3) * 0.3).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    assert torch.allclose(got, (scores.softmax(-1) @ values).transpose(1, 2), atol=1e-6)
