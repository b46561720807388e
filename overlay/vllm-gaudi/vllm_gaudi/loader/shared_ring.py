# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of a node share for one load: a table of what is filled and taken, and a ring of bytes.

The memory has no name (memfd), so nothing is left behind however a rank ends, and it is independent of the size of
/dev/shm. Only processes of the same user that hold the token can find it.

Every byte of the tables is written by one rank only, after the data it speaks of; x86-64 shows stores in order.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from contextlib import suppress

import numpy as np

PAGE = mmap.PAGESIZE
TOKEN = 16  # bytes
NO_EXECUTION = 0x8  # MFD_NOEXEC_SEAL, Linux 6.3; some kernels refuse memory without it
SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW: nobody can cut it off under a reader
ADD_SEALS = 1033


class SharingError(RuntimeError):
    """The ranks cannot share memory; the message says why."""


def _sizes(blocks: int, ranks: int, ring_bytes: int) -> tuple[int, int]:
    """(where the ring starts, size of it all) in bytes."""
    tables = TOKEN + blocks * (1 + ranks)
    start = -(-tables // PAGE) * PAGE
    return start, start + max(PAGE, ring_bytes)


class Ring:
    """One mapping of the memory.

    `filled` uint8 [blocks]: 1 once a block's bytes are there. `taken` uint8 [ranks, blocks]: 1 once a rank has copied
    what it wants of a block. `data` uint8 [ring bytes].
    """

    def __init__(self, handle: int, blocks: int, ranks: int, ring_bytes: int) -> None:
        start, size = _sizes(blocks, ranks, ring_bytes)
        self._map = mmap.mmap(handle, size)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        self.token = whole[:TOKEN].tobytes()
        self.filled = whole[TOKEN : TOKEN + blocks]
        self.taken = whole[TOKEN + blocks : TOKEN + blocks * (1 + ranks)].reshape(ranks, blocks)
        self.data = whole[start:]
        self.size = size

    def close(self) -> None:
        """Let go of it; the memory ends with the last mapping, at the latest with the process."""
        del self.filled, self.taken, self.data
        with suppress(BufferError):
            self._map.close()


class Offer:
    """The memory as its maker offers it to the others of the node, until `close`.

    Raises:
        SharingError: no such memory to be had.
    """

    def __init__(self, blocks: int, ranks: int, ring_bytes: int) -> None:
        size = _sizes(blocks, ranks, ring_bytes)[1]
        try:
            self._handle = _memory()
        except OSError as error:
            raise SharingError(f"no shared memory ({error.strerror})") from error
        try:
            token = secrets.token_bytes(TOKEN)
            os.posix_fallocate(self._handle, 0, size)  # now, or a later write would end the process
            os.pwrite(self._handle, token, 0)
            fcntl.fcntl(self._handle, ADD_SEALS, SEALS)
        except OSError as error:
            self.close()
            raise SharingError(f"no {size} bytes of shared memory ({error.strerror})") from error
        self.address = f"{os.getpid()} {self._handle} {token.hex()}"

    def close(self) -> None:
        """End the offer; mappings stay."""
        os.close(self._handle)


def _memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("model-load", flags | NO_EXECUTION)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("model-load", flags)


def accept(address: str, blocks: int, ranks: int, ring_bytes: int) -> Ring:
    """Map what an `Offer` with this `address` offers.

    Raises:
        SharingError: it cannot be opened, or is something else.
    """
    pid, number, token = address.split()
    try:
        handle = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise SharingError(f"memory of process {pid} is out of reach ({error.strerror})") from error
    try:
        if os.fstat(handle).st_size != _sizes(blocks, ranks, ring_bytes)[1]:
            raise SharingError(f"memory of process {pid} has another size")
        ring = Ring(handle, blocks, ranks, ring_bytes)
    except SharingError:
        raise
    except (OSError, ValueError) as error:
        raise SharingError(f"memory of process {pid} cannot be mapped ({error})") from error
    finally:
        os.close(handle)
    if ring.token.hex() != token:
        ring.close()
        raise SharingError(f"memory of process {pid} is not the one offered")
    return ring
