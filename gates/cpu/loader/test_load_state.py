# SPDX-License-Identifier: Apache-2.0
"""The load format leaves the very bytes vLLM's own loader leaves, on every rank of every layout."""

import pytest
import torch
from node_load import load_node
from rank_model import load

from vllm_gaudi.loader.headers import read_checkpoint
from vllm_gaudi.loader.state_hash import state_digest, tensor_digest

LAYOUTS = {
    "bf16": {},
    "bf16 packed": {"packed": True},
    "fp8": {"fp8": True},
    "fp8 packed": {"fp8": True, "packed": True},
    "fp8 bf16 scales": {"fp8": True, "scale_dtype": torch.bfloat16},
    "fp8 with bf16 experts": {"fp8": True, "bf16_experts": True},
    "muse bf16": {"mxfp4": False},
    "mxfp4": {"mxfp4": True},
}
# The first and the last rank are the ones that differ in kind: padding is on the last.
CELLS = [
    ("fp8", 1, 0, False), ("fp8", 2, 1, False), ("fp8", 8, 7, False), ("fp8", 8, 7, True), ("fp8", 4, 1, True),
    ("fp8 bf16 scales", 4, 2, False), ("fp8 packed", 2, 1, True), ("fp8 packed", 8, 3, False), ("bf16", 8, 7, False),
    ("bf16 packed", 4, 3, True), ("fp8 with bf16 experts", 2, 0, False), ("mxfp4", 1, 0, False),
    ("mxfp4", 8, 6, True), ("mxfp4", 8, 7, False), ("muse bf16", 8, 5, True),
]  # fmt: skip


def same(folder, tp, rank, ep, **settings):
    stock, ours = (state_digest(load(folder, kind, tp, rank, ep, **extra)) for kind, extra in
                   (("auto", {}), ("frontier", settings)))  # fmt: skip
    assert [name for name in stock[1] if stock[1][name] != ours[1].get(name)] == []
    assert stock == ours


@pytest.mark.parametrize(("layout", "tp", "rank", "ep"), CELLS)
def test_state_is_that_of_the_stock_loader(checkpoint, layout, tp, rank, ep):
    same(checkpoint(**LAYOUTS[layout]), tp, rank, ep)


# Shards that end within an expert, within a layer, and with single tensors; reads that cut rows at odd places.
AWKWARD = [(1, {}), (7, {"chunk_bytes": 1000, "host_bytes": 30_000, "shared_bytes": 40_000, "threads": 3})]


@pytest.mark.long
@pytest.mark.parametrize("ep", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_of_a_node_have_the_state_of_the_stock_loader(checkpoint, layout, tp, ep):
    stock = None
    for shards, settings in AWKWARD:
        folder = checkpoint(**LAYOUTS[layout], shards=shards)
        stock = stock or [state_digest(load(folder, "auto", tp, rank, ep)) for rank in range(tp)]
        node = load_node(folder, tp, ep, **settings)
        assert [loaded.error for loaded in node] == [None] * tp
        read = sum(loaded.totals.bytes_read for loaded in node)
        size = sum(entry.nbytes for entry in read_checkpoint(folder).values())
        assert read <= 1.02 * size
        for expected, loaded in zip(stock, node, strict=True):
            assert expected == loaded.digest()


@pytest.mark.parametrize("settings", [
    pytest.param({"threads": 1, "chunk_bytes": 1, "host_bytes": 1}, marks=pytest.mark.long),
    {"threads": 1, "chunk_bytes": 1, "host_bytes": 1 << 13},
    {"threads": 7, "chunk_bytes": 97, "host_bytes": 1 << 14},
    {"threads": 64, "chunk_bytes": 1 << 30, "host_bytes": 1 << 40},
])  # fmt: skip
def test_buffer_sizes_and_threads_change_nothing(checkpoint, settings):
    same(checkpoint(fp8=True), 2, 1, False, **settings)


def test_one_shard_and_many_give_one_state(checkpoint):
    digests = {state_digest(load(checkpoint(fp8=True, shards=shards), "frontier", 2, 1))[0] for shards in (1, 3, 11)}
    assert len(digests) == 1


def test_ranks_differ_and_a_changed_byte_shows(checkpoint):
    """Control of the digest: it sees the rank, one bit, a dtype and a shape."""
    model = load(checkpoint(fp8=True), "beam", 2, 0)
    before = state_digest(model)[0]
    assert before != state_digest(load(checkpoint(fp8=True), "beam", 2, 1))[0]
    model.lm_head.weight.data[3, 5] += 1
    assert before != state_digest(model)[0]
    value = torch.arange(6, dtype=torch.int32)
    assert len({tensor_digest(t) for t in (value, value.view(2, 3), value.view(torch.float32), value.flip(0))}) == 4


def test_the_simulated_rank_holds_a_ranks_share(checkpoint):
    """Control of the simulation: shares of heads, of an expert's columns, and of the experts."""
    layers = [load(checkpoint(fp8=True), "beam", 8, 7, ep).model.layers[3] for ep in (False, True)]
    assert [layer.self_attn.qkv_proj.weight.shape for layer in layers] == [(40, 48)] * 2
    stacks = [layer.mlp.experts.routed_experts.w2_weight.shape for layer in layers]
    assert stacks == [(16, 40, 3), (2, 40, 24)]


@pytest.mark.parametrize(
    "extra", [{"shared_bytes": -1}, {"thread": 3}, {"threads": 0}, {"threads": "4"}, {"chunk_bytes": True}]
)
def test_settings_are_checked(extra):
    from vllm_gaudi.loader.model_loader import LoadSettings

    with pytest.raises(ValueError, match=next(iter(extra))):
        LoadSettings.of(extra)
