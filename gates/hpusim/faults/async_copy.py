# SPDX-License-Identifier: Apache-2.0
"""A non-blocking copy to the host holds garbage until the host has waited for it.

Waiting is an event recorded after the copy and synchronised, a stream or device synchronisation, or a blocking read of
any device value. Host code that reads too early sees NaN, or integers that are no token and no slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim import probe, streams, tracker, transfers
from gates.hpusim.faults import garbage
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo
from gates.hpusim.residency import is_device


class Arriving:
    """Copies on their way to the host, in program order."""

    def __init__(self) -> None:
        self.clock = 0
        self._copies: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def depart(self, destination: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        if not non_blocking or is_device(destination):
            return
        self.clock += 1
        with tracker.paused(), torch.inference_mode():
            self._copies.append((self.clock, destination, destination.detach().clone()))
            garbage.fill(destination.detach())

    def arrive(self, until: int | None) -> None:
        """Copies up to clock `until` are complete; None: all of them."""
        with tracker.paused(), torch.inference_mode():
            while self._copies and (until is None or self._copies[0][0] <= until):
                _, destination, value = self._copies.pop(0)
                destination.detach().copy_(value)


def start(fault: Fault) -> Callable[[], None]:
    arriving, undo = Arriving(), Undo()
    original_record = streams.Event.record

    def record(self: streams.Event, stream: streams.Stream | None = None) -> None:
        original_record(self, stream)
        self.copies_clock = arriving.clock

    def waited(event: streams.Event | None) -> None:
        arriving.arrive(None if event is None else getattr(event, "copies_clock", 0))

    def listen(kind: str, nbytes: int, info: dict[str, Any]) -> None:
        if kind == "sync" and info.get("op") != "event":
            arriving.arrive(None)

    undo.then(lambda: arriving.arrive(None))
    undo.replace(streams.Event, "record", record)
    undo.append(transfers.copy_hooks, arriving.depart)
    undo.append(streams.wait_hooks, waited)
    undo.append(probe.listeners, listen)
    return undo
