# SPDX-License-Identifier: Apache-2.0
"""Device memory: bytes of live device storages, their high-water mark and the limit.

Counted are storages that outlive the operator that made them; workspace inside a kernel is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim.settings import settings

_lock = threading.RLock()  # re-entrant: a release can run inside an allocation, from the garbage collector
_allocated = 0
_peak = 0
allocations = 0
# Called with (bytes asked, bytes live) before an allocation is booked; a fault model may raise from here.
pressure_hooks: list[Callable[[int, int], None]] = []


_native: Any = None  # the native lane's allocator, which then does the counting


def count_with(native: Any) -> None:
    """Ask the native device for every figure from now on."""
    global _native
    _native = native


class Block:
    """Booking of one device storage; lives exactly as long as the storage it is attached to."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        global allocations
        self.nbytes = 0  # what the destructor gives back when a hook or the limit refuses
        for hook in pressure_hooks:
            hook(nbytes, memory_allocated())
        if _native is not None:
            _native.book(nbytes)
            self.nbytes = nbytes
            return
        self._book(nbytes)
        allocations += 1

    def resize(self, nbytes: int) -> None:
        """The storage now has `nbytes`; raises like a new one when they do not fit."""
        if nbytes > self.nbytes:
            for hook in pressure_hooks:
                hook(nbytes - self.nbytes, memory_allocated())
        self._book(nbytes - self.nbytes)

    def _book(self, nbytes: int) -> None:
        global _allocated, _peak
        limit = settings().memory_bytes
        with _lock:
            if _allocated + nbytes > limit:
                raise torch.OutOfMemoryError(
                    f"emulated HPU out of memory: asked for {nbytes} bytes with {_allocated} of {limit} in use; "
                    "lower gpu_memory_utilization or raise HPUSIM_MEM_GIB"
                )
            self.nbytes += nbytes
            _allocated += nbytes
            if _allocated > _peak:
                _peak = _allocated

    def __del__(self) -> None:
        global _allocated
        if _native is not None:
            _native.unbook(self.nbytes)
            return
        with _lock:
            _allocated -= self.nbytes


def memory_allocated(device: Any = None) -> int:
    """Bytes of device storages alive now."""
    return _allocated if _native is None else _native.allocated()


def max_memory_allocated(device: Any = None) -> int:
    """High-water mark in bytes since start or the last reset."""
    return _peak if _native is None else _native.peak()


def reset_peak_memory_stats(device: Any = None) -> None:
    global _peak
    if _native is not None:
        _native.reset_peak()
        return
    with _lock:
        _peak = _allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) in bytes."""
    total = settings().memory_bytes
    return total - memory_allocated(), total


class _Stats(dict[str, int]):
    def __missing__(self, key: str) -> int:
        raise NotImplementedError(f"memory_stats()[{key!r}] is not emulated; there are {', '.join(self)}")


def memory_stats(device: Any = None) -> dict[str, int]:
    """The counters that are kept, under the names Habana's allocator uses; sizes in bytes."""
    return _Stats(
        Limit=settings().memory_bytes,
        InUse=memory_allocated(),
        MaxInUse=max_memory_allocated(),
        NumAllocs=allocations if _native is None else _native.allocations(),
    )
