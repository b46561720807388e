# SPDX-License-Identifier: Apache-2.0
"""Streams and events. The CPU runs in program order, so waiting is bookkeeping: what was recorded, who waited for what.

Fault models make order matter (copies that hold garbage until waited for) through `wait_hooks`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim import probe

# Called with (event or None for a full synchronisation) when the host waits.
wait_hooks: list[Callable[[Any], None]] = []
_local = threading.local()
_next_id = 1


class Stream:
    """A queue of device work; `stream_id` 0 is the default (compute) stream."""

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        global _next_id
        if stream_id is None:
            stream_id, _next_id = _next_id, _next_id + 1
        self.stream_id = stream_id
        self.hpu_stream = stream_id
        self.device = torch.device("hpu", 0)
        self.device_index = 0
        self.device_type = 0
        self.priority = priority

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        for hook in wait_hooks:
            hook(None)
        return True

    def synchronize(self) -> None:
        host_wait(None, "stream")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<emulated hpu stream {self.stream_id}>"


class Event:
    """A marker in a stream. Waiting for one that was never recorded returns at once, as on hardware."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self.recorded_on: Stream | None = None
        self.recorded_at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.recorded_on = stream or current_stream()
        self.recorded_at = time.perf_counter()
        if probe.listeners:
            probe.emit("event_record", caller=probe.caller())

    def wait(self, stream: Stream | None = None) -> None:
        if probe.listeners:
            probe.emit("event_wait", recorded=self.recorded_on is not None, host=False, caller=probe.caller())

    def synchronize(self) -> None:
        if probe.listeners:
            probe.emit("event_wait", recorded=self.recorded_on is not None, host=True, caller=probe.caller())
        host_wait(self, "event")

    def query(self) -> bool:
        """Always done by the time it is asked, which for a fault model is a wait like any other."""
        for hook in wait_hooks:
            hook(self)
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events; RuntimeError when either has no timing or was not recorded."""
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("elapsed_time needs both events made with enable_timing=True")
        if self.recorded_on is None or end_event.recorded_on is None:
            raise RuntimeError("elapsed_time needs both events recorded first")
        return (end_event.recorded_at - self.recorded_at) * 1e3


DEFAULT = Stream(stream_id=0)


def default_stream(device: Any = None) -> Stream:
    return DEFAULT


def current_stream(device: Any = None) -> Stream:
    return getattr(_local, "stream", DEFAULT)


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _local.stream = stream


class StreamContext:
    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.previous = current_stream()
        set_stream(self.stream)

    def __exit__(self, *exc: Any) -> None:
        set_stream(self.previous)


def stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)


def host_wait(event: Event | None, op: str) -> None:
    """The host waits for `event`, or for everything when None."""
    if probe.listeners:
        probe.emit("sync", op=op, caller=probe.caller())
    for hook in wait_hooks:
        hook(event)
