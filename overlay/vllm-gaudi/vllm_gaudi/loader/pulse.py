# SPDX-License-Identifier: Apache-2.0
"""Which ranks have gone silent: stopped, hung, or dead on another machine, where no process can be looked at.

Every rank counts up in the store while it waits or reads. One whose count
stands still is named in the log, and after `patience` seconds ends the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch.distributed import Store
from vllm.logger import init_logger

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
BEAT = 2.0  # seconds between two counts
NAMED = 30.0  # seconds of silence before a rank is named, and between two such lines


class Pulse:
    """The counts of `ranks` ranks in `store`; `patience` in seconds, 0 to wait for ever."""

    def __init__(
        self, store: Store, rank: int, ranks: int, patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.rank, self.patience, self.clock = store, rank, patience, clock
        self._count, self._beaten, self._named = 0, -BEAT, -NAMED
        # A rank that has not counted yet is silent from here on.
        self._heard = dict.fromkeys((other for other in range(ranks) if other != rank), ("", clock()))

    def silent(self, among: Iterable[int]) -> dict[int, float]:
        """Count up, look at the others, and return seconds of silence by rank for those `among` these past `NAMED`.

        Looks at the store every `BEAT` seconds only; in between the answer is empty.
        """
        now = self.clock()
        if now - self._beaten < BEAT:
            return {}
        self._beaten, self._count = now, self._count + 1
        self.store.set(f"pulse/{self.rank}", str(self._count))
        for other, (count, _) in self._heard.items():
            if self.store.check([f"pulse/{other}"]):
                found = self.store.get(f"pulse/{other}").decode()
                if found != count:
                    self._heard[other] = found, now
        return {
            other: now - self._heard[other][1]
            for other in among
            if other in self._heard and now - self._heard[other][1] >= NAMED
        }

    def late(self, among: Iterable[int]) -> str:
        """The ranks `among` these that are past patience, for an error; logs those that are silent before that."""
        silent = self.silent(among)
        if not silent:
            return ""
        words = ", ".join(f"rank {rank} (silent for {seconds:.0f} s)" for rank, seconds in sorted(silent.items()))
        if self.patience and max(silent.values()) >= self.patience:
            return words
        if self.clock() - self._named >= NAMED:
            self._named = self.clock()
            until = f"; the load ends after {self.patience:.0f} s" if self.patience else ""
            logger.warning("loading: rank %d waits for %s%s", self.rank, words, until)
        return ""
