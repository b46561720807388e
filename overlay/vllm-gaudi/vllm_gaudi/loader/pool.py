# SPDX-License-Identifier: Apache-2.0
"""Reader threads that take the most urgent work first."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import traceback
from collections.abc import Callable

from vllm_gaudi.loader.host_memory import HostMemory
from vllm_gaudi.loader.reader import Buffers

# Work for others first: they may be waiting for it.
TAKE, SERVE, READ = 0, 1, 2
Work = Callable[[Buffers], None]


def _let_go(error: BaseException | None) -> None:
    """Drop the buffers that the frames of `error` still hold: an error may be kept longer than its load."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class Pool:
    """`threads` threads; an exception of a piece of work goes to `failed`, and its thread ends."""

    def __init__(self, threads: int, memory: HostMemory, failed: Callable[[BaseException], None]) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Work | None]] = queue.PriorityQueue()
        self._memory, self._failed = memory, failed
        self._number, self._stop = itertools.count(), threading.Event()
        self._threads: list[threading.Thread] = []
        try:
            for number in range(threads):
                thread = threading.Thread(target=self._run, name=f"load-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def put(self, urgency: int, work: Work) -> None:
        """Have `work` done after all that is more urgent or was put before it."""
        self._queue.put((urgency, next(self._number), work))

    def close(self, seconds: float | None = None) -> bool:
        """Stop after the work at hand; what waits is dropped. False if some is not done after `seconds`."""
        self._stop.set()
        for _ in self._threads:
            self._queue.put((-1, next(self._number), None))
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        buffers = Buffers(self._memory)
        try:
            while (work := self._queue.get()[2]) is not None and not self._stop.is_set():
                work(buffers)
        except BaseException as error:  # handed to the thread that copies
            _let_go(error)
            self._failed(error)
        finally:
            buffers.close()
