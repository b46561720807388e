# SPDX-License-Identifier: Apache-2.0
"""The host memory of a load: stated beforehand, counted while it is used, and never more."""

from __future__ import annotations

import threading

import torch


class HostMemory:
    """Buffers of at most `limit` bytes, `peak` so far. Safe to use from any thread.

    A buffer that was given back is kept for the next of its size, as fresh pages cost as much as filling them, and
    dropped when its bytes are needed otherwise.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held, self.peak = limit, 0, 0
        self._spare: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor [nbytes] with anything in it; `give` it back.

        Raises:
            RuntimeError: that would be more than what was stated.
        """
        with self._lock:
            for index, spare in enumerate(self._spare):
                if spare.numel() == nbytes:
                    return self._spare.pop(index)
            while self._spare and self.held + nbytes > self.limit:
                self.held -= self._spare.pop(0).numel()
            if self.held + nbytes > self.limit:
                raise RuntimeError(
                    f"{nbytes} bytes more host memory on top of {self.held} would exceed the stated {self.limit}; this "
                    "is a fault of the load format, load with --load-format auto and report it"
                )
            self.held += nbytes
            self.peak = max(self.peak, self.held)
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def give(self, buffer: torch.Tensor) -> None:
        """Take `buffer` back; it must not be used any more."""
        with self._lock:
            self._spare.append(buffer)


class Scratch:
    """A thread's buffer, reused by one read after the other and grown when a row needs more."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory, self._buffer = memory, None

    def get(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor [nbytes] with anything in it, until the next call."""
        if self._buffer is None or self._buffer.numel() < nbytes:
            self.close()
            self._buffer = self._memory.take(nbytes)
        return self._buffer[:nbytes]

    def close(self) -> None:
        """Give the buffer back."""
        if self._buffer is not None:
            self._memory.give(self._buffer)
            self._buffer = None
