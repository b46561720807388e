# SPDX-License-Identifier: Apache-2.0
"""Reads the blocks this rank owes its node, and takes from the common memory what the others have read.

One thread watches the tables of the ring and hands out work when it can be done, so that no reader thread ever waits
for another rank. A rank that dies leaves blocks unfilled or untaken; the thread that copies looks for that.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import numpy as np
import torch

from vllm_gaudi.loader import reader
from vllm_gaudi.loader.node import Sharing
from vllm_gaudi.loader.node_plan import Block
from vllm_gaudi.loader.plan import Plan
from vllm_gaudi.loader.pool import SERVE, TAKE, Pool, Work
from vllm_gaudi.loader.stacks import Move

EAGER, LAZY = 0.0005, 0.005  # seconds between two looks, after something was found and after nothing was
AHEAD = 1024  # blocks looked at together
Taker = Callable[[torch.Tensor, reader.Buffers], None]


class Exchange:
    """The shared part of one rank's load of `plan`.

    `read(nbytes)` is called for what was read, `took(nbytes)` for what was taken, `failed(error)` when it must end.
    """

    def __init__(
        self,
        sharing: Sharing,
        plan: Plan,
        pool: Pool,
        files: reader.Files,
        read: Callable[[int], None],
        took: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.sharing, self.ring, self.plan = sharing, sharing.ring, plan
        self.pool, self.files = pool, files
        self._read, self._took, self._failed = read, took, failed
        me, blocks = sharing.me, sharing.blocks
        self._owed = [number for number, block in enumerate(blocks) if block.reader == me]
        self._mine = np.array([number for number, block in enumerate(blocks) if me in block.takers], dtype=np.int64)
        self._left = {int(number): blocks[number].nbytes for number in self._mine}
        self._needed = np.zeros_like(self.ring.taken)
        for number, block in enumerate(blocks):
            self._needed[list(block.takers), number] = 1
        self._ranges = self._by_file()
        self._waiting: dict[int, list[Work]] = defaultdict(list)
        self._data = torch.from_numpy(self.ring.data)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="load-share", daemon=True)

    def start(self) -> None:
        """Begin to read for the others, and to take."""
        self._thread.start()

    def close(self, idle: bool = True) -> None:
        """Stop. Unless the pool is `idle` the common memory stays mapped: a hung read may still write there."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._waiting.clear()
        if not idle:
            return
        del self._data
        self.ring.close()

    def _by_file(self) -> dict[str, tuple[list[int], list[int], list[int]]]:
        """File name -> (numbers, starts, ends) of this rank's blocks in it, by offset."""
        found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for number in self._left:
            block = self.sharing.blocks[number]
            found[self.sharing.files[block.file]].append((block.offset, block.offset + block.nbytes, number))
        table = {}
        for file, entries in found.items():
            entries.sort()
            starts, ends, numbers = (list(column) for column in zip(*entries, strict=True))
            table[file] = numbers, starts, ends
        return table

    def within(self, move: Move) -> Iterator[tuple[int, int, int]]:
        """(block, first row, end row) of the rows of `move` that come from the ring, in order."""
        source, region = move.source, move.region
        if source.file not in self._ranges or not source.pitch:
            return
        numbers, starts, ends = self._ranges[source.file]
        low = source.offset + region.row * source.pitch
        high = low + region.rows * source.pitch
        for index in range(bisect_right(ends, low), bisect_left(starts, high)):
            first, last = max(low, starts[index]), min(high, ends[index])
            yield numbers[index], (first - low) // source.pitch, (last - low) // source.pitch

    def want(self, number: int, piece: reader.Piece, taker: Taker) -> None:
        """Have `taker(bytes [nbytes] of piece, buffers)` called once block `number` is there."""
        block, size = self.sharing.blocks[number], piece.rows * piece.move.source.pitch
        begin = block.at + piece.offset - block.offset

        def work(buffers: reader.Buffers) -> None:
            taker(self._data[begin : begin + piece.nbytes], buffers)
            self._took(size)
            with self._lock:
                self._left[number] -= size
                last = self._left[number] == 0
            if last:
                self.ring.taken[self.sharing.me, number] = 1

        with self._lock:
            self._waiting[number].append(work)

    def _read_for_node(self, number: int, buffers: reader.Buffers) -> None:
        block: Block = self.sharing.blocks[number]
        target = self.ring.data[block.at : block.at + block.nbytes]
        reader.fill(self.files, self.sharing.files[block.file], partial(self._name, block), [target], block.offset)
        self._read(block.nbytes)
        self.ring.filled[number] = 1

    def _name(self, block: Block) -> str:
        """The tensor a block is of."""
        file = self.sharing.files[block.file]
        for stack in self.plan.stacks:
            for source in (move.source for move in stack.moves):
                size = prod(source.shape) * source.dtype.itemsize
                if source.file == file and source.offset <= block.offset < source.offset + size:
                    return source.stored or source.name
        return "of another rank"

    def _watch(self) -> None:
        try:
            self._work()
        except BaseException as error:  # handed to the thread that copies
            self._failed(error)

    def _work(self) -> None:
        owed, gone = 0, 0  # blocks handed to the pool; blocks before this number are taken by all
        while not self._stop.is_set():
            gone = self._passed(gone)
            served = owed
            while owed < len(self._owed) and self.sharing.blocks[self._owed[owed]].after < gone:
                self.pool.put(SERVE, partial(self._read_for_node, self._owed[owed]))
                owed += 1
            moved = self._hand_out(gone) or owed > served
            if gone == len(self.sharing.blocks):
                return
            self._stop.wait(EAGER if moved else LAZY)

    def _passed(self, gone: int) -> int:
        """The first block from `gone` on that somebody still has to take."""
        while gone < len(self.sharing.blocks):
            window = slice(gone, gone + AHEAD)
            missing = (self.ring.taken[:, window] < self._needed[:, window]).any(axis=0)
            if missing.any():
                return gone + int(missing.argmax())
            gone += len(missing)
        return gone

    def _hand_out(self, gone: int) -> bool:
        """Put to the pool what is wanted and there; whether there was any."""
        start = int(np.searchsorted(self._mine, gone))
        near = self._mine[start : start + AHEAD]
        ready = near[self.ring.filled[near] == 1]
        with self._lock:
            found = [work for number in ready for work in self._waiting.pop(int(number), ())]
        for work in found:
            self.pool.put(TAKE, work)
        return bool(found)
