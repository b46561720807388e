# SPDX-License-Identifier: Apache-2.0
"""The host runs ahead of the device: what it frees stays occupied until the device has caught up.

In lazy mode the host queues a layer in a few milliseconds, the device needs tens, and every queued launch holds its
intermediates. Here a storage that Python lets go of keeps its bytes booked until the host waits: for everything, or for
an event recorded after the storage was let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gates.hpusim import memory, probe, streams
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo


class Held:
    """Bytes the host has freed and the device has not; returned to the device when this object goes."""

    __slots__ = ("nbytes",)
    __del__ = memory.Block.__del__

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Queue:
    """Freed bytes in program order, each with the clock at which the host let go of them."""

    def __init__(self) -> None:
        self.clock = 0
        self._held: deque[tuple[int, Held]] = deque()

    def free(self, nbytes: int) -> None:
        self.clock += 1
        if nbytes:
            self._held.append((self.clock, Held(nbytes)))

    def catch_up(self, until: int | None) -> None:
        """The device has finished everything freed up to clock `until`; None: everything."""
        while self._held and (until is None or self._held[0][0] <= until):
            self._held.popleft()


def start(fault: Fault) -> Callable[[], None]:
    queue, undo = Queue(), Undo()
    original_record = streams.Event.record

    def record(self: streams.Event, stream: streams.Stream | None = None) -> None:
        original_record(self, stream)
        self.run_ahead_clock = queue.clock

    def delete(block: memory.Block) -> None:
        nbytes, block.nbytes = block.nbytes, 0
        queue.free(nbytes)

    def waited(event: streams.Event | None) -> None:
        queue.catch_up(None if event is None else getattr(event, "run_ahead_clock", 0))

    def listen(kind: str, nbytes: int, info: dict[str, Any]) -> None:
        # Reading a device value waits for everything; a wait for one event comes through `waited`.
        if kind == "sync" and info.get("op") != "event":
            queue.catch_up(None)

    undo.then(lambda: queue.catch_up(None))
    undo.replace(streams.Event, "record", record)
    undo.replace(memory.Block, "__del__", delete)
    undo.append(streams.wait_hooks, waited)
    undo.append(probe.listeners, listen)
    return undo
