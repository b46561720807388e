# SPDX-License-Identifier: Apache-2.0
"""What ranks share: exactly the bytes that two of them need, in a ring that cannot jam and loses nothing."""

import random

import numpy as np
import pytest

from vllm_gaudi.loader.node_plan import COLUMNS, blocks_of


def needs(dice, ranks):
    """(needs of each rank, bytes of the file) for tensors replicated, sliced, and sliced over pairs of ranks."""
    lines, end = [[] for _ in range(ranks)], 0
    for position in range(dice.randint(1, 12)):
        rows, pitch, kind = dice.randint(1, 40), dice.choice([1, 2, 4, 80, 96]), dice.choice(["all", "slice", "pair"])
        start, end = end, end + rows * pitch
        for rank in range(ranks):
            share = {"all": (0, 1), "slice": (rank, rank + 1), "pair": (rank // 2, rank // 2 + 1)}[kind]
            first, last = (rows if kind == "all" and edge else rows * edge // ranks for edge in share)
            if last > first:
                lines[rank].append((0, start + first * pitch, last - first, pitch, position, first))
    return [np.array(part, dtype=np.int64).reshape(-1, len(COLUMNS)) for part in lines], end


def run(dice, blocks, ranks, size):
    """Ranks write and take in any order the tables allow; raises when none can go on or a byte is lost."""
    memory, left, full = np.full(size, -1), [len(block.takers) for block in blocks], set()
    owed, mine = (
        [[n for n, block in enumerate(blocks) if of(block, rank)] for rank in range(ranks)]
        for of in (lambda block, rank: block.reader == rank, lambda block, rank: rank in block.takers)
    )
    gone = 0
    while any(mine):
        acts = [("write", rank) for rank in range(ranks) if owed[rank] and blocks[owed[rank][0]].after < gone]
        acts += [("take", rank) for rank in range(ranks) if mine[rank] and mine[rank][0] in full]
        assert acts, "the ranks wait for each other in a circle"
        act, rank = dice.choice(acts)
        number = (owed if act == "write" else mine)[rank].pop(0)
        place = slice(blocks[number].at, blocks[number].at + blocks[number].nbytes)
        if act == "write":
            assert all(left[other] == 0 for other in set(memory[place]) - {-1}), "overwritten before it was taken"
            memory[place] = number
            full.add(number)
        else:
            assert (memory[place] == number).all()
            left[number] -= 1
        while gone < len(blocks) and left[gone] == 0:
            gone += 1


@pytest.mark.parametrize("seed", range(60))
def test_what_two_ranks_need_is_shared_once_and_flows(seed):
    dice = random.Random(seed)
    ranks = dice.randint(2, 8)
    lines, end = needs(dice, ranks)
    ring = dice.choice([128, 4096, 1 << 20])
    limit = dice.choice([limit for limit in (1, 64, 500, 10**6) if limit <= ring // 2])
    blocks, size = blocks_of(lines, limit, ring)
    assert size <= ring
    wanted = np.zeros((ranks, end), dtype=int)
    for rank, part in enumerate(lines):
        for _, start, rows, pitch, _, _ in part:
            wanted[rank, start : start + rows * pitch] += 1
    shared = np.zeros(end, dtype=int)
    for block in blocks:
        place = slice(block.offset, block.offset + block.nbytes)
        shared[place] += 1
        assert block.reader in block.takers
        assert block.nbytes <= max(limit, 96)
        assert [bool(part.all()) for part in wanted[:, place]] == [rank in block.takers for rank in range(ranks)]
    assert (shared == (wanted.sum(axis=0) > 1)).all()
    run(dice, blocks, ranks, size)


def line(position=0, start=0, rows=4, pitch=8, to_row=0):
    return np.array([(0, start, rows, pitch, position, to_row)], dtype=np.int64)


@pytest.mark.parametrize("other", [line(position=1), line(to_row=2), line(pitch=4, rows=8), line(start=32)])
def test_what_ranks_do_not_place_alike_is_not_shared(other):
    assert blocks_of([line(), other], 100, 1000)[0] == []
    assert len(blocks_of([line(), line()], 100, 1000)[0]) == 1


def test_a_row_that_does_not_fit_the_ring_is_said():
    with pytest.raises(ValueError, match="a shared block of 128 bytes does not fit a ring of 100"):
        blocks_of([line(pitch=80)] * 2, 1, 100)


def test_a_simulation_sees_a_ring_that_is_written_too_early():
    """Control of the simulation."""
    from dataclasses import replace

    lines = [np.concatenate([line(position=at, start=32 * at) for at in range(9)])] * 2
    blocks, size = blocks_of(lines, 32, 128)
    run(random.Random(1), blocks, 2, size)
    with pytest.raises(AssertionError):
        run(random.Random(1), [replace(block, after=-1) for block in blocks], 2, size)


def test_reads_for_others_are_spread_evenly():
    lines = [np.concatenate([line(position=at, start=32 * at) for at in range(16)])] * 4
    blocks, _ = blocks_of(lines, 32, 1000)
    assert [sum(block.reader == rank for block in blocks) for rank in range(4)] == [4] * 4
