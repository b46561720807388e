# SPDX-License-Identifier: Apache-2.0
"""Fills the stacks with reader threads and copies each to the device once, while others are read.

Host memory is bounded: a stack is admitted, in the plan's order, only while all
admitted ones fit the budget, or when it is the only one. So at most
max(budget, largest stack) bytes are held, plus one read buffer a thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vllm_gaudi.loader import reader
from vllm_gaudi.loader.placement import as_matrix
from vllm_gaudi.loader.plan import Plan, Stack

POLL = 0.2  # seconds between two looks at the other ranks while waiting for readers


@dataclass
class Totals:
    """What a load cost. Times in seconds, of the thread that copies."""

    bytes_read: int = 0
    jobs: int = 0
    copies: int = 0
    syncs: int = 0
    waited: float = 0.0
    copying: float = 0.0
    elapsed: float = 0.0
    peak_host: int = 0


class _Filling:
    """A stack being read."""

    def __init__(self, stack: Stack, jobs: list[reader.Job]) -> None:
        self.stack, self.left = stack, len(jobs)
        self.host = torch.empty(stack.nbytes, dtype=torch.uint8, device="cpu")
        for region in stack.zeros:
            at, shape = stack.parameters[region.parameter]
            pitch = as_matrix(shape)[1] * stack.dtype.itemsize
            self.host[at + region.to_row * pitch : at + (region.to_row + region.rows) * pitch] = 0


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
    ) -> None:
        self.plan, self.parameters, self.table = plan, parameters, table
        self.threads, self.chunk_bytes, self.host_bytes = threads, chunk_bytes, host_bytes
        self.watch, self.totals = watch, Totals()
        self.files = reader.Files()
        self._jobs: queue.SimpleQueue[tuple[_Filling, reader.Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Filling | BaseException] = queue.SimpleQueue()
        self._lock, self._stop = threading.Lock(), threading.Event()

    def run(self) -> Totals:
        """Fill every parameter.

        `watch` is called a few times a second with the totals so far; what it raises ends the load.

        Raises:
            CheckpointError: a read failed.
            Exception: whatever a reader thread or `watch` raised. The parameters are partly filled then.
        """
        begin = time.monotonic()
        readers = [threading.Thread(target=self._read, name=f"load-{i}", daemon=True) for i in range(self.threads)]
        for thread in readers:
            thread.start()
        try:
            self._drive()
        finally:
            self._stop.set()
            for _ in readers:
                self._jobs.put(None)
            for thread in readers:
                thread.join()
            self.files.close()
            self.totals.elapsed = time.monotonic() - begin
        return self.totals

    def _drive(self) -> None:
        waiting = list(reversed(self.plan.stacks))
        held = filling = 0
        while waiting or filling:
            while waiting and (not filling or held + waiting[-1].nbytes <= self.host_bytes):
                stack = waiting.pop()
                held, filling = held + stack.nbytes, filling + 1
                self._admit(stack)
                self.totals.peak_host = max(self.totals.peak_host, held)
            full = self._next()
            self._copy(full)
            held, filling = held - full.stack.nbytes, filling - 1

    def _admit(self, stack: Stack) -> None:
        jobs = reader.jobs_of(stack, self.chunk_bytes)
        entry = _Filling(stack, jobs)
        self.totals.jobs += len(jobs)
        for job in jobs:
            self._jobs.put((entry, job))
        if not jobs:
            self._done.put(entry)

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

    def _read(self) -> None:
        while (work := self._jobs.get()) is not None and not self._stop.is_set():
            entry, job = work
            try:
                reader.run(job, entry.host, self.table, self.files)
            except BaseException as error:  # handed to the thread that called `run`
                self._done.put(error)
                return
            with self._lock:
                self.totals.bytes_read += job.nbytes
                entry.left -= 1
                full = entry.left == 0
            if full:
                self._done.put(entry)

    @torch.no_grad()
    def _copy(self, full: _Filling) -> None:
        """One transfer, and one sync so that the host buffer may go."""
        begin = time.monotonic()
        stack, host = full.stack, full.host.view(full.stack.dtype)
        first = self.parameters[next(iter(stack.parameters))]
        if len(stack.parameters) == 1:
            first.data.copy_(host.view(first.shape))
        else:
            held = host.to(first.device)
            for name, (at, shape) in stack.parameters.items():
                start = at // stack.dtype.itemsize
                target = self.parameters[name].data
                target.copy_(held[start : start + target.numel()].view(shape))
        self.totals.copies += 1
        if first.device.type != "cpu":
            torch.get_device_module(first.device).synchronize()
            self.totals.syncs += 1
        self.totals.copying += time.monotonic() - begin
