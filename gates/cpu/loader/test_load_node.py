# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node read each byte once, through common memory or, where there is none, each for itself."""

import errno
import os
import re
from contextlib import suppress

import pytest
from node_load import load_node
from rank_model import load
from test_load_faults import faulty_read

from vllm_gaudi.loader import agreement, node, shared_ring
from vllm_gaudi.loader.agreement import PeerError
from vllm_gaudi.loader.headers import CheckpointError, read_checkpoint
from vllm_gaudi.loader.state_hash import state_digest

TP = 4


@pytest.fixture(scope="module")
def stock(checkpoint):
    """Digests of all ranks, loaded by vLLM's own loader: FP8, experts sliced over the ranks."""
    return [state_digest(load(checkpoint(fp8=True), "auto", TP, rank)) for rank in range(TP)]


@pytest.fixture
def said(monkeypatch):
    """Lines that the load logged."""
    lines = []
    monkeypatch.setattr(node.logger, "warning", lambda text, *args: lines.append(text % args))
    return lines


def total(ranks):
    return sum(loaded.totals.bytes_read for loaded in ranks)


def size(folder):
    return sum(entry.nbytes for entry in read_checkpoint(folder).values())


def memories() -> list[str]:
    """Memory without a name that this process still holds or maps."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself, closed by now
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    with open("/proc/self/maps") as maps:
        return [entry for entry in [*found, *maps] if "model-load" in entry]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        # One block at a time in the ring, reads of a row, stacks of a row: slower, and the same.
        pytest.param(
            {"threads": 2, "chunk_bytes": 1, "host_bytes": 1, "shared_bytes": 4096}, marks=pytest.mark.long, id="rows"
        ),
        {"threads": 5, "chunk_bytes": 700, "host_bytes": 20_000, "shared_bytes": 30_000},
    ],
)
def test_each_byte_is_read_once_on_a_node(checkpoint, stock, settings):
    folder = checkpoint(fp8=True)
    ranks = load_node(folder, TP, **settings)
    assert [loaded.error for loaded in ranks] == [None] * TP
    assert 0.98 * size(folder) <= total(ranks) <= 1.02 * size(folder)
    assert all(0 < loaded.totals.bytes_read < 0.5 * size(folder) for loaded in ranks)
    assert [loaded.digest() for loaded in ranks] == stock
    assert memories() == []


def test_without_common_memory_bytes_are_read_repeatedly(checkpoint, stock):
    """Control of the count, and the setting that turns sharing off."""
    folder = checkpoint(fp8=True)
    ranks = load_node(folder, TP, shared_bytes=0)
    assert total(ranks) > 1.5 * size(folder)
    assert [loaded.digest() for loaded in ranks] == stock


def test_muse_ranks_share_what_four_slices_cut_across(checkpoint):
    folder = checkpoint(mxfp4=True)
    ranks = load_node(folder, TP, True)
    assert total(ranks) <= 1.02 * size(folder)
    assert total(load_node(folder, TP, True, shared_bytes=0)) > 1.2 * size(folder)
    assert ranks[3].digest() == state_digest(load(folder, "auto", TP, 3, True))


def refuse(error):
    def function(*args, **kwargs):
        raise OSError(error, os.strerror(error))

    return function


def no_memory(monkeypatch):
    monkeypatch.setattr(shared_ring.os, "memfd_create", refuse(errno.ENOSYS))


def too_small(monkeypatch):
    monkeypatch.setattr(shared_ring.os, "posix_fallocate", refuse(errno.ENOSPC))


def out_of_reach(monkeypatch):
    real = os.open

    def opened(path, *args, **kwargs):
        return refuse(errno.EACCES)() if str(path).startswith("/proc/") else real(path, *args, **kwargs)

    monkeypatch.setattr(shared_ring.os, "open", opened)


def another_memory(monkeypatch):
    real = shared_ring.Ring.__init__

    def init(self, *args):
        real(self, *args)
        self.token = bytes(16)

    monkeypatch.setattr(shared_ring.Ring, "__init__", init)


def a_block_too_large(monkeypatch):
    monkeypatch.setattr(node, "blocks_of", lambda *_: (_ for _ in ()).throw(ValueError("a shared block of 5 bytes")))


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (no_memory, r"rank 0: no shared memory \(Function not implemented\)"),
        (too_small, r"rank 0: no \d+ bytes of shared memory \(No space left on device\)"),
        (out_of_reach, r"rank 0: memory of process \d+ is out of reach \(Permission denied\)"),
        (another_memory, r"rank 0: memory of process \d+ is not the one offered"),
        (a_block_too_large, r"a shared block of 5 bytes"),
    ],
)
def test_ranks_that_cannot_share_say_so_and_load_the_same(checkpoint, monkeypatch, said, trouble, message):
    trouble(monkeypatch)
    folder = checkpoint(fp8=True)
    ranks = load_node(folder, TP, ranks=2)
    assert [loaded.error for loaded in ranks] == [None, None]
    assert len(said) == 1
    assert re.search(rf"each rank of \[0, 1\] reads all it needs itself.*: {message}", said[0])
    monkeypatch.undo()
    assert ranks[1].digest() == state_digest(load(folder, "beam", TP, 1))
    assert memories() == []


def test_ranks_of_two_nodes_share_with_their_own(checkpoint, stock, monkeypatch):
    import threading

    names = iter(["first", "first", "second", "second"])
    lock, machines = threading.Lock(), {}

    def machine():
        with lock:
            return machines.setdefault(threading.get_ident(), next(names))

    monkeypatch.setattr(agreement, "_machine", machine)
    folder = checkpoint(fp8=True)
    ranks = load_node(folder, TP)
    assert [loaded.digest() for loaded in ranks] == stock
    # Row-sliced tensors are read on both nodes, the slices of each rank on one.
    assert 1.1 * size(folder) < total(ranks) < 2 * size(folder)


@pytest.mark.parametrize("at", [0, 40])
def test_a_read_that_fails_on_one_rank_ends_all_and_leaves_no_memory(checkpoint, monkeypatch, at):
    def fail(file, offset):
        raise OSError(errno.EIO, "Input/output error")

    faulty_read(monkeypatch, fail, at=at)
    ranks = load_node(checkpoint(fp8=True), TP, chunk_bytes=2000, shared_bytes=20_000)
    errors = [loaded.error for loaded in ranks]
    told = [error for error in errors if isinstance(error, CheckpointError)]
    heard = [error for error in errors if isinstance(error, PeerError)]
    assert len(told) == 1
    assert len(heard) == TP - 1
    assert re.search(r"safetensors: tensor model\..* at offset \d+: .*Input/output error", str(told[0]))
    assert {str(error) for error in heard} == {f"rank {errors.index(told[0])}: CheckpointError: {told[0]}"}
    assert memories() == []


def test_a_taker_that_is_slow_is_not_overtaken(checkpoint, stock, monkeypatch):
    """Delays between what is filled and what is taken, in a ring of a few blocks."""
    import random
    import time

    from vllm_gaudi.loader import reader

    dice, real = random.Random(3), reader.put

    def slow(*args):
        time.sleep(dice.choice((0, 0, 0, 0.002)))
        real(*args)

    monkeypatch.setattr(reader, "put", slow)
    ranks = load_node(checkpoint(fp8=True), TP, threads=3, chunk_bytes=3000, shared_bytes=9000)
    assert [loaded.digest() for loaded in ranks] == stock


def test_a_block_that_is_overwritten_too_early_shows(checkpoint, stock, monkeypatch):
    """Control of the ring: writers that do not wait for takers spoil the state."""
    from dataclasses import replace

    real = node.blocks_of

    def hasty(*args):
        blocks, ring = real(*args)
        return [replace(block, after=-1) for block in blocks], ring

    monkeypatch.setattr(node, "blocks_of", hasty)
    ranks = load_node(checkpoint(fp8=True), TP, threads=2, chunk_bytes=3000, shared_bytes=9000)
    assert any(loaded.error for loaded in ranks) or [loaded.digest() for loaded in ranks] != stock


def test_memory_is_private_sealed_and_nameless():
    offer = shared_ring.Offer(3, 2, 100)
    try:
        ring = shared_ring.accept(offer.address, 3, 2, 100)
        pid, number, _ = offer.address.split()
        with pytest.raises(PermissionError):
            os.ftruncate(int(number), 10)
        assert os.fstat(int(number)).st_nlink == 0
        with pytest.raises(shared_ring.SharingError, match="another size"):
            shared_ring.accept(offer.address, 4000, 2, 100)
        with pytest.raises(shared_ring.SharingError, match="not the one offered"):
            shared_ring.accept(f"{pid} {number} {bytes(16).hex()}", 3, 2, 100)
        ring.close()
    finally:
        offer.close()
    with pytest.raises(shared_ring.SharingError, match="out of reach"):
        shared_ring.accept(offer.address, 3, 2, 100)
    assert memories() == []
