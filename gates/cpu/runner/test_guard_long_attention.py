# SPDX-License-Identifier: Apache-2.0
"""Guard of the long-attention patch: tiles, their bias, and what a call may keep as workspace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

GIB = 2**30


def _math(query, key, value, bias, scale) -> torch.Tensor:
    """fp32 attention of [batch, heads, rows, head] tensors, one row at a time."""
    rows = []
    for i in range(query.size(-2)):
        scores = (query[..., i : i + 1, :] * key).sum(-1) * scale + bias[..., i, :]
        weights = torch.softmax(scores, dim=-1)
        rows.append((weights.unsqueeze(-1) * value).sum(-2))
    return torch.stack(rows, dim=-2)


class _Kernel:
    """Stands in for ModuleFusedSDPA: attends in fp32 and meters what the real kernel would keep."""

    def __init__(self, attend: bool = True):
        self.workspace, self.plane, self.rows = 0, 0, []
        self._attend = attend

    def __call__(self, query, key, value, bias, dropout, causal, scale, *rest) -> torch.Tensor:
        heads, rows, keys = query.size(1), query.size(2), key.size(2)
        self.workspace = max(self.workspace, 4 * heads * rows * keys)
        self.plane = max(self.plane, bias.size(-2) * keys * bias.element_size())
        self.rows.append(rows)
        assert not causal, "a tile is not a causal square"
        return _math(query, key, value, bias, scale) if self._attend else query


def _call(kernel, queries: int, keys: int, heads: int, bias: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    from vllm_gaudi.extension import ops

    generator = torch.Generator().manual_seed(queries + keys)
    make = lambda n: torch.randn(1, n, heads, 8, generator=generator)  # noqa: E731
    query = torch.empty(1, queries, heads, 8, device=device) if device == "meta" else make(queries)
    key, value = (torch.empty(1, keys, heads, 8, device=device) if device == "meta" else make(keys) for _ in range(2))
    return ops.prompt_attention(
        impl="fsdpa_impl",
        query=query,
        key=key,
        value=value,
        scale=0.5,
        fsdpa_op=kernel,
        is_causal=True,
        attn_bias=bias,
        valid_seq_lengths=torch.tensor([queries]),
    )


def _metadata(context: int, chunk: int, queries: int, size: int = 16):
    from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1
    from vllm_gaudi.v1.worker.hpu_model_runner import trim_attn_metadata

    values = {name: None for name in HPUAttentionMetadataV1.__dataclass_fields__}
    blocks = torch.arange(-(-context // size) + 2, dtype=torch.int32)
    values.update(
        is_prompt=True,
        block_size=size,
        block_list=blocks,
        seq_lens_tensor=torch.tensor([chunk]),
        context_lens_tensor=torch.tensor([context]),
    )
    return trim_attn_metadata(HPUAttentionMetadataV1(**values))


def _processor():
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor

    processor = HPUAttentionMetadataProcessor.__new__(HPUAttentionMetadataProcessor)
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="llama"), hf_text_config=None)
    )
    vars(processor).update(
        prefill_use_fusedsdpa=True, block_size=16, interleaved_sliding_window=False, vllm_config=config
    )
    return processor


def _bias(processor, metadata, queries: int, dtype=torch.float32) -> torch.Tensor:
    return processor.process_metadata(metadata, 1, queries, torch.device("cpu"), dtype).attn_bias


@pytest.mark.parametrize(("context", "chunk", "queries"), [(40, 30, 32), (64, 32, 32), (17, 5, 16), (300, 64, 64)])
def test_tiles_are_wired_in(settings, forward_state, context: int, chunk: int, queries: int) -> None:
    """Dense and compact bias, tiled, equal to one untiled call over upstream's dense bias, bit for bit."""
    from vllm_gaudi.runtime import long_attention

    forward_state.graphs = False
    settings(LONG_ATTENTION="off")
    dense = _bias(_processor(), _metadata(context, chunk, queries), queries)
    keys = dense.size(-1)
    assert dense.size(-2) == queries
    whole = _Kernel()
    forward_state.long_attention = False
    # Upstream's module turns causality off itself when there is a bias.
    expected = _call(lambda q, k, v, b, d, c, s, *r: whole(q, k, v, b, d, False, s, *r), queries, keys, 2, dense)
    assert whole.rows == [queries]

    settings(LONG_ATTENTION="on", COMPACT_BIAS_KEYS="8", ATTENTION_WORKSPACE_BYTES=str(2**20))
    forward_state.long_attention = True
    compact = _bias(_processor(), _metadata(context, chunk, queries), queries)
    assert compact.shape == (1, 1, 1, keys)
    for first in range(0, queries, 8):
        rows = long_attention.tile_bias(compact, first, 8, queries)
        assert torch.equal(rows, dense[:, :, first : first + 8])
    kernel = _Kernel()
    assert torch.equal(_call(kernel, queries, keys, 2, compact), expected)


def test_tiled_attention_is_bit_equal(settings, forward_state) -> None:
    forward_state.graphs, forward_state.long_attention = False, True
    queries, heads, context = 128, 4, 1600
    processor = _processor()
    settings(LONG_ATTENTION="off")
    dense = _bias(processor, _metadata(context, 120, queries), queries)
    keys = dense.size(-1)
    settings(LONG_ATTENTION="on", ATTENTION_WORKSPACE_BYTES=str(2**20))
    kernel = _Kernel()
    tiled = _call(kernel, queries, keys, heads, dense)
    assert kernel.rows == [8] * 16
    assert kernel.workspace < 2**20
    forward_state.long_attention = False
    whole = _Kernel()
    assert torch.equal(
        tiled, _call(lambda q, k, v, b, d, c, s, *r: whole(q, k, v, b, d, False, s, *r), queries, keys, heads, dense)
    )


@pytest.mark.parametrize("heads", [6, 16])
@pytest.mark.parametrize("keys", [2**15, 2**16, 2**17, 2**18, 2**19, 2**20])
def test_metered_workspace_stays_under_the_budget(settings, forward_state, heads: int, keys: int) -> None:
    settings(LONG_ATTENTION="on")
    forward_state.graphs, forward_state.long_attention = False, True
    kernel = _Kernel(attend=False)
    bias = torch.empty(1, 1, 4096 if keys <= 2**16 else 1, keys, dtype=torch.bfloat16, device="meta")
    _call(kernel, 4096, keys, heads, bias, "meta")
    assert sum(kernel.rows) == 4096
    assert kernel.workspace < 2 * GIB
    assert kernel.plane < 2**31
    assert 4 * heads * 4096 * keys > 2 * GIB, "untiled it would not fit"


def test_rows_of_the_port_pages() -> None:
    from vllm_gaudi.runtime.long_attention import tile_rows

    rows = [tile_rows(16, 4096, keys, 2, 2 * GIB) for keys in (2**16, 2**17, 2**18, 2**19, 2**20)]
    assert rows == [256, 128, 64, 32, 16]
    assert tile_rows(16, 4096, 4096, 2, 2 * GIB) == 4096
    assert tile_rows(1, 8192, 2**17, 2, 2**62) < 8192, "a bias plane of 2^31 bytes is never built"
    with pytest.raises(RuntimeError, match="VLLM_GAUDI_FRONTIER_ATTENTION_WORKSPACE_BYTES"):
        tile_rows(16, 128, 2**20, 2, 2**20)


def test_other_models_and_graphs_are_left_alone(settings, forward_state) -> None:
    settings(COMPACT_BIAS_KEYS="8")
    forward_state.graphs, forward_state.long_attention = False, False
    assert _bias(_processor(), _metadata(40, 30, 32), 32).size(-2) == 32
    from vllm_gaudi.runtime import long_attention

    settings(LONG_ATTENTION="on", COMPACT_BIAS_KEYS="8")
    forward_state.graphs, forward_state.long_attention = True, True
    assert _bias(_processor(), _metadata(40, 30, 32), 32).size(-2) == 32
    assert long_attention.tiled_prompt("fsdpa_impl", {"attn_bias": torch.zeros(1, 1, 4, 8)}, None) is None


def test_tiles_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_gaudi.runtime import long_attention

    trace: list[tuple[str, int]] = []

    class Event:
        made = 0

        def __init__(self) -> None:
            self.name, Event.made = Event.made, Event.made + 1

        def record(self) -> None:
            trace.append(("record", self.name))

        def synchronize(self) -> None:
            trace.append(("wait", self.name))

    monkeypatch.setattr(torch.hpu, "Event", Event)
    flight = long_attention.InFlight(2)
    for _ in range(4):
        flight.launched()
    # After launch n the host waits for launch n - 1: two tiles at most are unfinished when the next is launched.
    assert trace == [("record", 0), ("record", 1), ("wait", 0), ("record", 0), ("wait", 1), ("record", 1), ("wait", 0)]


def test_prompts_of_one_call_share_the_budget(settings, forward_state) -> None:
    from vllm_gaudi.extension import ops

    settings(ATTENTION_WORKSPACE_BYTES=str(2**20))
    forward_state.long_attention, forward_state.graphs = True, False
    rows = {}
    for batch in (1, 4):
        kernel = _Kernel(attend=False)
        query = torch.empty(batch, 512, 2, 8, device="meta")
        bias = torch.empty(1, 1, 512, 512, device="meta")
        ops.prompt_attention(
            impl="fsdpa_impl",
            query=query,
            key=query,
            value=query,
            scale=0.5,
            fsdpa_op=kernel,
            is_causal=True,
            attn_bias=bias,
            valid_seq_lengths=torch.tensor([512] * batch),
        )
        rows[batch] = kernel.rows[0]
    assert rows == {1: 16, 4: 4}
