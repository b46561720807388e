# SPDX-License-Identifier: Apache-2.0
"""All ranks load, or none: a failure of one ends the load of all, with its message.

Ranks share a key-value store (torch.distributed). Each stage ends when every
rank has arrived; meanwhile, and while reading, each looks for a failure and at
whether the processes of its machine still live. No rank waits for a dead one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed import Store

from vllm_gaudi.loader.pulse import Pulse

logger = logging.getLogger(f"vllm.{__name__}")  # only loggers below "vllm" have a handler
FAILED = "failed"
LINGER = 5.0  # seconds
POLL = 0.05  # seconds between two looks while waiting for the others
MESSAGE = 8000  # characters of a message; more is cut
AWAITED = 30.0  # seconds between two lines about ranks that are awaited
PATIENCE = 900.0  # seconds of silence of another rank until the load ends
PART = 4 << 20  # bytes of one value; the TCP store takes no more than 8 MiB


class Patience:
    """Waits, and says every `AWAITED` seconds for what: a stopped rank does not fail, so somebody must see it."""

    def __init__(self) -> None:
        self.begin = self.said = time.monotonic()

    def wait(self, what: str) -> None:
        """Sleep `POLL`; log that `what` is awaited if that is due."""
        time.sleep(POLL)
        now = time.monotonic()
        if now - self.said >= AWAITED:
            self.said = now
            logger.warning("load awaits %s, since %.0f s; see its log, and if it is stopped", what, now - self.begin)


class PeerError(RuntimeError):
    """Another rank could not load, or is gone; the message is its own."""


def _machine() -> str:
    """Names what shares process ids: the running kernel and the namespace."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")


def _started(pid: int) -> str | None:
    """When process `pid` started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _sendable(message: object) -> str:
    """`message` as any store takes it: valid UTF-8 without NUL, of at most `MESSAGE` characters and a mark."""
    text = str(message)
    if len(text) > MESSAGE:
        text = f"{text[:MESSAGE]} ... (cut; {len(text)} characters, all of them in that rank's log)"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


class Agreement:
    """One load of `ranks` ranks; `store` must be empty and of this load alone (see `PrefixStore`).

    `patience`: seconds another rank may be silent (stopped, dead on another machine) before the load ends; 0: any time.
    """

    def __init__(self, store: Store, rank: int, ranks: int, patience: float = PATIENCE) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        self.pulse = Pulse(store, rank, ranks, patience)
        self._peers: dict[int, dict[str, Any]] = {}
        self._told = False
        self._machine = _machine()
        me = {"machine": self._machine, "pid": os.getpid(), "started": _started(os.getpid())}
        self._ask(lambda: store.set(f"rank/{rank}", json.dumps(me)))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """An answer of the store; it lives in the process of one rank, which may be the dead one."""
        try:
            return question()
        except RuntimeError as error:
            raise PeerError(
                f"the store that the ranks share is gone ({error}); a rank has died, see its log"
            ) from error

    def check(self, among: Iterable[int] | None = None) -> None:
        """Raise PeerError if another rank has failed, or one `among` these (default: all) has died or gone silent."""
        self._listen()
        among = range(self.ranks) if among is None else sorted(among)
        for rank in among:
            if self._gone(rank):
                # It may have failed and left between the two looks; its own words are better.
                self._listen()
                raise PeerError(
                    f"rank {rank} (process {self._peers[rank]['pid']}) died while loading; see its log and the kernel's"
                )
        if late := self._ask(lambda: self.pulse.late(among)):
            raise PeerError(f"waited in vain for {late}: stopped, or lost with its machine; see its log")

    def _listen(self) -> None:
        if self._ask(lambda: self.store.check([FAILED])):
            raise PeerError(self._ask(lambda: self.store.get(FAILED)).decode())

    def _gone(self, rank: int) -> bool:
        peer = self._peer(rank)
        return bool(peer and peer["machine"] == self._machine and _started(peer["pid"]) != peer["started"])

    def _peer(self, rank: int) -> dict[str, Any] | None:
        if rank not in self._peers and rank != self.rank and self._ask(lambda: self.store.check([f"rank/{rank}"])):
            self._peers[rank] = json.loads(self._ask(lambda: self.store.get(f"rank/{rank}")))
        return self._peers.get(rank)

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank cannot load; the first to fail is the one they hear of.

        Waits up to `LINGER` until all that live have heard, as the store may end with this process.
        """
        if self._told:
            return
        self._told = True
        whose = "" if isinstance(error, PeerError) else f"rank {self.rank}: {type(error).__name__}: "
        text = _sendable(f"{whose}{error}")
        with suppress(RuntimeError):  # the store may be what failed; this rank raises its error anyway
            self.store.compare_set(FAILED, "", text)
            self.store.set(f"heard/{self.rank}", "yes")
            until, others = time.monotonic() + LINGER, set(range(self.ranks))
            while others and time.monotonic() < until:
                others = {rank for rank in others if not self.store.check([f"heard/{rank}"]) and not self._gone(rank)}
                time.sleep(POLL)

    def meet(self, stage: str) -> None:
        """Return once every rank has called this for `stage`.

        Raises:
            PeerError: another rank failed or died.
        """
        self._ask(lambda: self.store.set(f"{stage}/{self.rank}", "here"))
        missing, patience = set(range(self.ranks)), Patience()
        while True:
            missing = {rank for rank in missing if not self._ask(lambda r=rank: self.store.check([f"{stage}/{r}"]))}
            if not missing:
                return
            # One that has arrived may have left by now, as all had arrived.
            self.check(missing)
            patience.wait(f"rank {_listed(missing)} at stage {stage}")

    def node(self) -> list[int]:
        """The ranks of this machine, this one included; after a `meet` these are all."""
        peers = ((rank, self._peer(rank)) for rank in range(self.ranks) if rank != self.rank)
        return sorted([self.rank, *(rank for rank, peer in peers if peer and peer["machine"] == self._machine)])

    def give(self, key: str, value: bytes) -> None:
        """Leave `value` for the others under this rank's `key`; once only."""
        count = -(-len(value) // PART)
        for part in range(count):
            piece = value[part * PART : (part + 1) * PART]
            self._ask(lambda p=part, v=piece: self.store.set(f"{key}/{self.rank}/{p}", v))
        self._ask(lambda: self.store.set(f"{key}/{self.rank}", str(count)))

    def take(self, key: str, rank: int) -> bytes:
        """What `rank` has given under `key`, waiting for it.

        Raises:
            PeerError: a rank failed or died meanwhile.
        """
        patience = Patience()
        while not self._ask(lambda: self.store.check([f"{key}/{rank}"])):
            self.check()
            patience.wait(f"rank {rank} for its {key}")
        count = int(self._ask(lambda: self.store.get(f"{key}/{rank}")))
        return b"".join(self._ask(lambda p=part: self.store.get(f"{key}/{rank}/{p}")) for part in range(count))

    def tell(self, done: int, total: int) -> list[tuple[int, int] | None]:
        """Publish the bytes read of this rank; returns (done, total) of every rank, None where it has told nothing."""
        self._ask(lambda: self.store.set(f"progress/{self.rank}", f"{done} {total}"))
        told: list[tuple[int, int] | None] = []
        for rank in range(self.ranks):
            if self._ask(lambda r=rank: self.store.check([f"progress/{r}"])):
                read, whole = self._ask(lambda r=rank: self.store.get(f"progress/{r}")).split()
                told.append((int(read), int(whole)))
            else:
                told.append(None)
        return told


class Alone(Agreement):
    """The agreement of a single rank."""

    def __init__(self) -> None:
        self.rank, self.ranks = 0, 1

    def check(self, among: Iterable[int] | None = None) -> None:
        """Nobody else to look at."""

    def fail(self, error: BaseException) -> None:
        """Nobody else to tell."""

    def meet(self, stage: str) -> None:
        """Nobody else to wait for."""

    def give(self, key: str, value: bytes) -> None:
        """Nobody else to give to."""

    def node(self) -> list[int]:
        """This rank."""
        return [0]

    def tell(self, done: int, total: int) -> list[tuple[int, int] | None]:
        """This rank's own."""
        return [(done, total)]


_loads = 0


def join(patience: float = PATIENCE) -> Agreement:
    """The agreement of the ranks of this process's world; every rank must call it equally often."""
    global _loads
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Alone()
    _loads += 1
    # The store by which the process group met; there is no public way to it, nor another store that is there already.
    store = dist.PrefixStore(f"model_load/{_loads}", dist.distributed_c10d._get_default_store())
    return Agreement(store, dist.get_rank(), dist.get_world_size(), patience)
