# SPDX-License-Identifier: Apache-2.0
"""Fills the stacks with reader threads and copies each to the device once, while others are read.

Host memory is bounded: a stack is admitted, in the plan's order, only while all
admitted ones fit the budget, or when it is the only one. So at most
max(budget, largest stack) bytes are held, plus the buffers of the threads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from vllm_gaudi.loader import reader
from vllm_gaudi.loader.exchange import Exchange
from vllm_gaudi.loader.host_memory import HostMemory
from vllm_gaudi.loader.node import Sharing
from vllm_gaudi.loader.plan import Plan
from vllm_gaudi.loader.pool import READ, Pool
from vllm_gaudi.loader.stacks import Stack
from vllm_gaudi.loader.transform import scratch_bytes

HUNG = 5.0  # seconds a failed load waits for reads at hand; a file server may never answer them
POLL = 0.2  # seconds between two looks at the other ranks while waiting for readers


@dataclass
class Totals:
    """What a load cost. Times in seconds, of the thread that copies.

    `bytes_read` are those this rank read from files, `bytes_taken` those it took from the node's common memory (what it
    read into it itself among them), `bytes_filled` those of the parameters that are there.
    """

    bytes_read: int = 0
    bytes_taken: int = 0
    bytes_filled: int = 0
    jobs: int = 0
    copies: int = 0
    syncs: int = 0
    waited: float = 0.0
    copying: float = 0.0
    elapsed: float = 0.0
    peak_host: int = 0


def host_limit(plan: Plan, threads: int, chunk_bytes: int, host_bytes: int) -> int:
    """Bytes of host memory a load of `plan` takes at most, the node's common memory not included."""
    buffers = scaled = 0
    for stack in plan.stacks:
        for move in stack.moves:
            rows = min(move.region.rows, max(1, chunk_bytes // max(1, move.source.pitch)))
            if not reader.is_direct(move, stack):
                buffers = max(buffers, rows * move.source.pitch)
            scaled = max(scaled, scratch_bytes(move, stack.dtype, rows))
    return max(host_bytes, plan.largest) + threads * (buffers + scaled)


class _Filling:
    """A stack being read: its buffer, and how many pieces of work are left."""

    def __init__(self, stack: Stack, host: torch.Tensor) -> None:
        self.stack, self.host, self.left = stack, host, 0
        for region in stack.zeros:
            top = region.to_row - stack.parts[region.parameter].row
            stack.place(region.parameter, host)[top : top + region.rows].view(torch.uint8).zero_()


class Assembler:
    """Loads one plan into `parameters`; use once."""

    def __init__(
        self,
        plan: Plan,
        parameters: dict[str, torch.nn.Parameter],
        table: np.ndarray | None,
        threads: int,
        chunk_bytes: int,
        host_bytes: int,
        watch: Callable[[Totals], None] = lambda totals: None,
        sharing: Sharing | None = None,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.failed = failed
        self.plan, self.parameters, self.table = plan, parameters, table
        self.threads, self.chunk_bytes, self.host_bytes = threads, chunk_bytes, host_bytes
        self.watch, self.totals = watch, Totals()
        self.memory = HostMemory(host_limit(plan, threads, chunk_bytes, host_bytes))
        self.sharing, self.exchange = sharing, None
        self.files = reader.Files()
        self._done: queue.SimpleQueue[_Filling | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def run(self) -> Totals:
        """Fill every parameter.

        `watch` is called a few times a second with the totals so far; what it raises ends the load. An error goes to
        `failed` first, as reads at hand may take long or never end; those are left behind after `HUNG` seconds.

        Raises:
            CheckpointError: a read failed.
            RuntimeError: more host memory was needed than `host_limit` says.
            Exception: whatever a reader thread or `watch` raised. The parameters are partly filled then.
        """
        begin = time.monotonic()
        self.pool, patience = Pool(self.threads, self.memory, self._done.put), None
        try:
            if self.sharing is not None:
                self.exchange = Exchange(
                    self.sharing, self.plan, self.pool, self.files, self._count_read, self._count_taken, self._done.put
                )
                self.exchange.start()
            self._drive()
        except BaseException as error:
            patience = HUNG
            self.failed(error)
            raise
        finally:
            idle = self.pool.close(patience)
            if self.exchange is not None:
                self.exchange.close(idle)
            if idle:  # else a number closed here could be another file's by the time a hung read uses it
                self.files.close()
            self.totals.elapsed = time.monotonic() - begin
            self.totals.peak_host = self.memory.peak
        return self.totals

    def _drive(self) -> None:
        waiting = list(reversed(self.plan.stacks))
        held = filling = 0
        while waiting or filling:
            while waiting and (not filling or held + waiting[-1].nbytes <= self.host_bytes):
                stack = waiting.pop()
                held, filling = held + stack.nbytes, filling + 1
                self._admit(stack)
            full = self._next()
            self._copy(full)
            held, filling = held - full.stack.nbytes, filling - 1
            self.memory.give(full.host)
            full.host = None
            self.totals.bytes_filled += sum(move.nbytes for move in full.stack.moves)

    def _admit(self, stack: Stack) -> None:
        entry = _Filling(stack, self.memory.take(stack.nbytes))
        pieces, wanted = [], []
        for move in stack.moves:
            row = 0
            for number, first, last in self.exchange.within(move) if self.exchange else ():
                pieces += reader.cut(move, stack, self.chunk_bytes, row, first)
                wanted += [(number, piece) for piece in reader.cut(move, stack, 1 << 62, first, last)]
                row = last
            pieces += reader.cut(move, stack, self.chunk_bytes, row, move.region.rows)
        jobs = reader.join(stack, pieces, self.chunk_bytes)
        entry.left = len(jobs) + len(wanted)
        self.totals.jobs += len(jobs)
        for job in jobs:
            self.pool.put(READ, partial(self._read, entry, job))
        for number, piece in wanted:
            self.exchange.want(number, piece, partial(self._take, entry, piece))
        if not entry.left:
            self._done.put(entry)

    def _read(self, entry: _Filling, job: reader.Job, buffers: reader.Buffers) -> None:
        reader.run(job, entry.host, self.table, self.files, buffers)
        self._count_read(job.nbytes)
        self._finish(entry)

    def _take(self, entry: _Filling, piece: reader.Piece, stored: torch.Tensor, buffers: reader.Buffers) -> None:
        reader.put(piece, stored, entry.stack, entry.host, self.table, buffers)
        self._finish(entry)

    def _finish(self, entry: _Filling) -> None:
        with self._lock:
            entry.left -= 1
            full = entry.left == 0
        if full:
            self._done.put(entry)

    def _count_read(self, nbytes: int) -> None:
        with self._lock:
            self.totals.bytes_read += nbytes

    def _count_taken(self, nbytes: int) -> None:
        with self._lock:
            self.totals.bytes_taken += nbytes

    def _next(self) -> _Filling:
        begin = time.monotonic()
        while True:
            self.watch(self.totals)
            try:
                found = self._done.get(timeout=POLL)
            except queue.Empty:
                continue
            if isinstance(found, BaseException):
                raise found
            self.totals.waited += time.monotonic() - begin
            return found

    @torch.no_grad()
    def _copy(self, full: _Filling) -> None:
        """One transfer, and one sync so that the host buffer may go."""
        begin = time.monotonic()
        stack, host = full.stack, full.host.view(full.stack.dtype)
        device = self.parameters[next(iter(stack.parts))].device
        held = host if len(stack.parts) == 1 else host.to(device)
        for name, part in stack.parts.items():
            start, target = part.at // stack.dtype.itemsize, self.parameters[name].data
            values = held[start : start + part.rows * part.columns]
            if part.whole:
                target.copy_(values.view(target.shape))
            else:
                rows = target.view(-1, part.columns)[part.row : part.row + part.rows]
                rows.copy_(values.view(part.rows, part.columns))
        self.totals.copies += 1
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
            self.totals.syncs += 1
        self.totals.copying += time.monotonic() - begin
