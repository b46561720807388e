# SPDX-License-Identifier: Apache-2.0
"""The ranks of one node agree on what they read for each other, or on reading each for itself."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from vllm.logger import init_logger

from vllm_gaudi.loader.agreement import Agreement
from vllm_gaudi.loader.node_plan import COLUMNS, Block, blocks_of, needs_of
from vllm_gaudi.loader.plan import Plan
from vllm_gaudi.loader.shared_ring import Offer, Ring, SharingError, accept

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
FINE = "yes"
MOST = 63  # ranks of a node; a bit each in a signed word
FLIGHT = 4  # blocks that fit the ring at least, unless a row is larger


@dataclass(frozen=True)
class Sharing:
    """What rank number `me` of a node shares: blocks in order, their memory, and the files they lie in."""

    me: int
    blocks: list[Block]
    ring: Ring
    files: Sequence[str]


def share(agreement: Agreement, plan: Plan, files: Sequence[str], chunk: int, ring_bytes: int) -> Sharing | None:
    """How this rank shares reads with the others of its node; None when each reads for itself, which is logged.

    Every rank calls it, after a common `meet`. Blocks have at most `chunk` bytes or one row, the ring `ring_bytes`
    (0 turns sharing off).

    Raises:
        PeerError: a rank failed or died.
    """
    node = agreement.node()
    if len(node) == 1 or ring_bytes == 0:
        return None
    me = node.index(agreement.rank)
    if len(node) > MOST:
        _alone(me, node, f"more than {MOST} ranks")
        return None
    try:
        needs = _exchange(agreement, node, plan, files)
        blocks, size = blocks_of(needs, min(chunk, ring_bytes // FLIGHT), ring_bytes)
    except (SharingError, ValueError) as error:  # the same on every rank of the node
        _alone(me, node, error)
        return None
    if not blocks:
        return None
    ring = _meet_in_memory(agreement, node, len(blocks), size)
    if ring is None:
        return None
    if me == 0:
        logger.info(
            "ranks %s of this node read %.2f GB for each other, through %.2f GB of shared memory",
            node, sum(block.nbytes for block in blocks) / 1e9, size / 1e9,
        )  # fmt: skip
    return Sharing(me, blocks, ring, files)


def node_line(agreement: Agreement, checkpoint: int) -> str:
    """On the first rank of a node, after `read_bytes` was given by all: what the node read of `checkpoint` bytes."""
    node = agreement.node()
    if agreement.rank != node[0] or len(node) == 1:
        return ""
    total = sum(int(agreement.take("read_bytes", rank)) for rank in node)
    return (
        f"{len(node)} ranks of this node read {total} bytes of a checkpoint of {checkpoint}, "
        f"{total / max(1, checkpoint):.3f} times"
    )


def _alone(me: int, node: list[int], why: object) -> None:
    if me == 0:
        logger.warning("each rank of %s reads all it needs itself, some bytes repeatedly: %s", node, why)


def _exchange(agreement: Agreement, node: list[int], plan: Plan, files: Sequence[str]) -> list[np.ndarray]:
    """`needs_of` every rank of the node."""
    names = "\n".join([*plan.positions, "", *files])
    mark = hashlib.sha256(names.encode()).digest()
    agreement.give("needs", mark + zlib.compress(needs_of(plan, files).tobytes(), 1))
    given = [agreement.take("needs", rank) for rank in node]
    if len({value[: len(mark)] for value in given}) > 1:
        raise SharingError("they hold different layers or see different files")
    return [np.frombuffer(zlib.decompress(value[len(mark) :]), np.int64).reshape(-1, len(COLUMNS)) for value in given]


def _meet_in_memory(agreement: Agreement, node: list[int], blocks: int, size: int) -> Ring | None:
    """Memory that all ranks of the node have mapped; None, and a line in the log, when one of them could not."""
    me, offer, ring, answer = node.index(agreement.rank), None, None, FINE
    with ExitStack() as stack:
        if me == 0:
            try:
                offer = Offer(blocks, len(node), size)
                stack.callback(offer.close)
            except SharingError as error:
                answer = str(error)
            agreement.give("ring", offer.address.encode() if offer else b"")
        address = agreement.take("ring", node[0]).decode()
        if address:
            try:
                ring = accept(address, blocks, len(node), size)
            except SharingError as error:
                answer = str(error)
        agreement.give("mapped", answer.encode())
        answers = [agreement.take("mapped", rank).decode() for rank in node]
    refusals = [f"rank {rank}: {said}" for rank, said in zip(node, answers, strict=True) if said != FINE]
    if refusals and ring is not None:
        ring.close()
    if refusals:
        _alone(me, node, refusals[0])
    return None if refusals else ring
