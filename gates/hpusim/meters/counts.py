# SPDX-License-Identifier: Apache-2.0
"""One bag of counters: what happened in a phase, a step or a layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Transfers:
    """Copies in one direction: how many, bytes, how many made the host wait, and who asked."""

    count: int = 0
    bytes: int = 0
    blocking: int = 0
    callers: dict[str, list[int]] = field(default_factory=dict)  # caller -> [count, bytes, largest copy in bytes]

    def add(self, nbytes: int, blocking: bool, caller: str) -> None:
        self.count += 1
        self.bytes += nbytes
        self.blocking += blocking
        entry = self.callers.setdefault(caller, [0, 0, 0])
        entry[0] += 1
        entry[1] += nbytes
        entry[2] = max(entry[2], nbytes)

    def merge(self, other: Transfers) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.blocking += other.blocking
        for caller, (count, nbytes, largest) in other.callers.items():
            entry = self.callers.setdefault(caller, [0, 0, 0])
            entry[0] += count
            entry[1] += nbytes
            entry[2] = max(entry[2], largest)

    def largest(self) -> int:
        """Bytes of the largest single copy."""
        return max((entry[2] for entry in self.callers.values()), default=0)

    def summary(self) -> dict[str, Any]:
        callers = {
            caller: {"count": count, "bytes": nbytes, "largest": largest}
            for caller, (count, nbytes, largest) in sorted(self.callers.items(), key=lambda item: -item[1][1])
        }
        return {
            "count": self.count,
            "bytes": self.bytes,
            "blocking": self.blocking,
            "largest": self.largest(),
            "callers": callers,
        }


# Counters that merge by addition.
_SUMS = (
    "launches",
    "launches_in_graph",
    "mark_steps",
    "empty_mark_steps",
    "collective_cuts",
    "compiled_calls",
    "event_records",
    "event_waits",
    "event_waits_unrecorded",
    "tensor_reprs",
    "moe_launches",
    "moe_tensor_inputs",
    "moe_tensor_reprs",
    "attention_calls",
)
_COUNTERS = ("ops", "syncs", "captures", "replays", "compiles", "mixed", "collectives", "collective_bytes")
_PEAKS = ("memory_peak", "attention_workspace", "moe_tensor_inputs_max")


@dataclass
class Counts:
    """Counters; field names are the keys of the JSON summary.

    launches: graph segments handed to the device, cut by mark_step, a collective, a blocking read or a graph's end;
    `launches_in_graph` is the part inside captured graphs. captures, replays: by `module key`. collectives and
    collective_bytes: by `operation dtype`. syncs: by `operation @ caller`. Peaks are bytes, or inputs a launch.
    """

    launches: int = 0
    launches_in_graph: int = 0
    mark_steps: int = 0
    empty_mark_steps: int = 0
    collective_cuts: int = 0
    compiled_calls: int = 0
    event_records: int = 0
    event_waits: int = 0
    event_waits_unrecorded: int = 0
    tensor_reprs: int = 0
    moe_launches: int = 0
    moe_tensor_inputs: int = 0
    moe_tensor_reprs: int = 0
    attention_calls: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)
    captures: Counter[str] = field(default_factory=Counter)
    replays: Counter[str] = field(default_factory=Counter)
    compiles: Counter[str] = field(default_factory=Counter)
    mixed: Counter[str] = field(default_factory=Counter)
    collectives: Counter[str] = field(default_factory=Counter)
    collective_bytes: Counter[str] = field(default_factory=Counter)
    memory_peak: int = 0
    attention_workspace: int = 0
    moe_tensor_inputs_max: int = 0
    h2d: Transfers = field(default_factory=Transfers)
    d2h: Transfers = field(default_factory=Transfers)

    def merge(self, other: Counts) -> None:
        """Add `other` to this one; peaks take the larger."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name in _PEAKS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        self.h2d.merge(other.h2d)
        self.d2h.merge(other.d2h)

    def summary(self) -> dict[str, Any]:
        """JSON-able: every field; counters as total and by name, most frequent first."""
        result: dict[str, Any] = {name: getattr(self, name) for name in (*_SUMS, *_PEAKS)}
        for name in _COUNTERS:
            counter = getattr(self, name)
            result[name] = {"total": sum(counter.values()), "by": dict(counter.most_common())}
        result["h2d"] = self.h2d.summary()
        result["d2h"] = self.d2h.summary()
        return result

    def brief(self) -> dict[str, int]:
        """The figures of one step."""
        return {
            "launches": self.launches,
            "mark_steps": self.mark_steps,
            "collectives": sum(self.collectives.values()),
            "captures": sum(self.captures.values()),
            "replays": sum(self.replays.values()),
            "h2d": self.h2d.count,
            "d2h": self.d2h.count,
            "d2h_bytes": self.d2h.bytes,
            "d2h_largest": self.d2h.largest(),
            "syncs": sum(self.syncs.values()),
            "moe_launches": self.moe_launches,
            "moe_tensor_inputs": self.moe_tensor_inputs,
            "moe_tensor_reprs": self.moe_tensor_reprs,
            "ops": sum(self.ops.values()),
        }
