# SPDX-License-Identifier: Apache-2.0
"""Copies, syncs, bytes and host memory are those the design promises, on a small model and for the published one."""

from collections import Counter

import pytest
import torch
from rank_model import SHAPE, as_rank
from test_load_faults import load_into

from gates.checkpoints.beam_layout import layout
from gates.checkpoints.beam_shapes import PUBLISHED
from gates.hpusim import meters
from vllm_gaudi.loader import reader
from vllm_gaudi.loader.headers import Stored, read_checkpoint
from vllm_gaudi.loader.model_loader import LoadSettings
from vllm_gaudi.loader.node_plan import blocks_of, needs_of
from vllm_gaudi.loader.plan import make_plan
from vllm_gaudi.loader.rescale import Rescale

NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8"}
SPARSE = 2  # of the five layers of SHAPE


def expert_stacks(plan):
    return [stack for stack in plan.stacks if ".experts." in stack.name]


def kept_reads(plan):
    """Bytes of whole rows that a rank reads when it shares nothing."""
    return sum(move.region.rows * move.source.pitch for stack in plan.stacks for move in stack.moves)


def test_one_copy_and_one_sync_a_stack(checkpoint, empty_model):
    model = empty_model(checkpoint(fp8=True), 2, 1, True)
    with as_rank(1, 2):
        plan = make_plan(model, read_checkpoint(checkpoint(fp8=True)), Rescale())
        assert len(expert_stacks(plan)) == 4 * SPARSE
        with meters.measure() as meter:
            totals = load_into(model, checkpoint(fp8=True))
    assert totals.copies == totals.syncs == len(plan.stacks)
    assert meter.total().h2d.count == len(plan.stacks)


def test_a_rank_reads_its_own_experts_once_and_no_others(checkpoint, empty_model, monkeypatch):
    model = empty_model(checkpoint(fp8=True), 8, 3, True)
    stored = read_checkpoint(checkpoint(fp8=True))
    read, real = Counter(), reader.Files.read

    def counted(self, file, buffers, offset):
        for buffer in buffers:
            (name,) = [n for n, s in stored.items() if s.file == file and s.offset <= offset < s.offset + s.nbytes]
            read[name] += len(buffer)
            offset += len(buffer)
        real(self, file, buffers, offset - sum(map(len, buffers)))

    monkeypatch.setattr(reader.Files, "read", counted)
    with as_rank(3, 8):
        totals = load_into(model, checkpoint(fp8=True), chunk_bytes=300)
    experts = {name: size for name, size in read.items() if ".experts." in name}
    assert {name.split(".experts.")[1].split(".")[0] for name in experts} == {"6", "7"}
    assert all(size == stored[name].nbytes for name, size in experts.items())
    assert totals.bytes_read == sum(read.values())


def test_ranks_of_a_node_read_each_expert_byte_once(checkpoint, empty_model):
    folder = checkpoint(fp8=True)
    stored = read_checkpoint(folder)
    experts = sum(entry.nbytes for name, entry in stored.items() if ".experts." in name)
    node = 0
    for rank in range(4):
        model = empty_model(folder, 4, rank, True)
        with as_rank(rank, 4):
            plan = make_plan(model, stored, Rescale())
        node += sum(move.nbytes for stack in expert_stacks(plan) for move in stack.moves)
    assert node == experts


@pytest.mark.parametrize("budget", [1, 3000, 10_000])
def test_host_memory_stays_below_the_limit_however_small(checkpoint, empty_model, budget):
    """A tiny limit costs copies, never memory: the largest stack alone is above all of them."""
    model = empty_model(checkpoint(fp8=True), 2, 1)
    with as_rank(1, 2):
        plan = make_plan(model, read_checkpoint(checkpoint(fp8=True)), Rescale())
        totals = load_into(model, checkpoint(fp8=True), host_bytes=budget, chunk_bytes=64, threads=3)
    row, held = 48 * 4, max(stack.nbytes for stack in plan.stacks)  # widest row of a parameter
    assert held > 15_000
    assert totals.peak_host <= max(budget, row) + 3 * 2 * max(64, 256)  # a row is read and rescaled at least
    assert totals.copies > len(plan.stacks)


def test_a_load_that_would_hold_more_than_stated_ends(checkpoint, empty_model, monkeypatch):
    """Control of the assertion: a limit stated one byte too low is found out."""
    from vllm_gaudi.loader import assemble

    model = empty_model(checkpoint(fp8=True))
    monkeypatch.setattr(assemble, "host_limit", lambda plan, *_: plan.largest - 1)
    with pytest.raises(RuntimeError, match=r"would exceed the stated \d+"):
        load_into(model, checkpoint(fp8=True), host_bytes=20_000, threads=1)


def test_neighbouring_tensors_are_read_in_one_call(checkpoint, empty_model):
    model = empty_model(checkpoint(packed=True))
    totals = load_into(model, checkpoint(packed=True))
    assert totals.jobs < make_plan(model, read_checkpoint(checkpoint(packed=True)), Rescale()).tensors


def fake_headers(table: dict) -> dict[str, Stored]:
    """Headers of a checkpoint that nobody wrote, from its layout."""
    stored, at = {}, 8
    for name, entry in table.items():
        size = entry.dtype.itemsize
        for extent in entry.shape:
            size *= extent
        stored[name] = Stored(name, "all.safetensors", NAMES[entry.dtype], entry.shape, at, size)
        at += size
    return stored


def test_196_expert_copies_for_the_published_model(tmp_path, empty_model):
    from gates.checkpoints import beam, beam_chat

    beam.write_config(tmp_path, PUBLISHED, fp8=True, bf16_experts=False)
    beam_chat.write_tokenizer(tmp_path)
    model = empty_model(tmp_path, 8, 5, True, device="meta")
    stored = fake_headers(layout(PUBLISHED, fp8=True))
    with as_rank(5, 8):
        plan = make_plan(model, stored, Rescale(), LoadSettings().host_bytes)
    assert plan.tensors == 76_267
    assert len(expert_stacks(plan)) == 196
    assert sum(len(stack.moves) for stack in expert_stacks(plan)) == 75_264 // 8
    # 52 layers of FP8 weights, fp32 scales and BF16 rest, 49 routers in the fp32 stacks, three single tensors.
    assert len(plan.stacks) == 196 + 3 * 52 + 3
    assert plan.skipped == 75_264 * 7 // 8
    experts = sum(entry.nbytes for name, entry in stored.items() if ".experts." in name)
    assert sum(m.nbytes for s in expert_stacks(plan) for m in s.moves) == experts // 8
    assert SHAPE["num_hidden_layers"] - 3 == SPARSE


@pytest.mark.long
def test_a_node_reads_the_published_sizes_once(tmp_path, empty_model):
    """From the headers of the real sizes: what the ranks share makes up for what they would read repeatedly."""
    from gates.checkpoints import muse
    from gates.checkpoints.muse_layout import layout as muse_layout
    from gates.checkpoints.muse_shapes import PUBLISHED as MUSE

    config = {**MUSE, "num_hidden_layers": 3}  # the first and last in BF16, one packed
    muse.write_config(tmp_path, config, mxfp4=True)
    stored = fake_headers(muse_layout(config, mxfp4=True))
    plans = []
    for rank in range(8):
        model = empty_model(tmp_path, 8, rank, True, device="meta")
        with as_rank(rank, 8):
            plans.append(make_plan(model, stored, Rescale(), LoadSettings().host_bytes))
    packed = [stack for stack in plans[0].stacks if ".layers.1.mlp.experts.w" in stack.name]
    assert {stack.name.rsplit(".", 1)[1] for stack in packed} == {"w13", "w2", "w13_scale", "w2_scale"}
    blocks, ring = blocks_of([needs_of(plan, ["all.safetensors"]) for plan in plans], 8 << 20, 1 << 30)
    alone = sum(kept_reads(plan) for plan in plans)
    shared = sum(block.nbytes * len(block.takers) for block in blocks)
    once = sum(block.nbytes for block in blocks)
    size = sum(entry.nbytes for entry in stored.values())
    assert ring == 1 << 30
    assert alone > 1.5 * size
    assert alone - shared + once == size
    reads = [sum(block.nbytes for block in blocks if block.reader == rank) for rank in range(8)]
    assert max(reads) < 1.1 * min(reads)
