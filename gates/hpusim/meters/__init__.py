# SPDX-License-Identifier: Apache-2.0
"""What the emulated device counts.

    with meters.measure() as meter:      # in this process, around any torch program
        ...
    meter.total().d2h.count

A server or engine writes a JSON summary at exit when HPUSIM_METERS names a path.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any

import torch

from gates.hpusim import memory, probe, tracker
from gates.hpusim.meters import watch
from gates.hpusim.meters.counts import Counts
from gates.hpusim.meters.meter import Meter

_FLUSH_SECONDS = 1.0


def _attach(meter: Meter) -> Callable[[], None]:
    """Start counting; returns what stops it."""
    probe.listeners.append(meter)
    tracker.op_hooks.append(meter.on_op)

    def detach() -> None:
        probe.listeners.remove(meter)
        tracker.op_hooks.remove(meter.on_op)

    return detach


@contextmanager
def measure() -> Iterator[Meter]:
    """Count what the block does in this process; phases are those of the engine, `outside` for plain torch code."""
    meter = Meter()
    detach = _attach(meter)
    try:
        yield meter
    finally:
        meter.cut(False)
        detach()


def overhead(meter: Meter) -> dict[str, float]:
    """Estimated cost of counting: microseconds an event (measured now), and its share of the time spent in steps."""
    trial = Meter()
    start = time.perf_counter()
    for _ in range(500):
        trial("mark_step", 0, {"caller": probe.caller()})
    each = (time.perf_counter() - start) / 500
    share = each * sum(meter.steps.values()) and each * meter.events / max(meter.step_seconds, 1e-9)
    return {"microseconds_per_event": round(each * 1e6, 2), "share_of_step_time": round(min(share, 1.0), 4)}


def _layer(counts: Counts) -> dict[str, int]:
    brief = counts.brief()
    return {
        name: brief[name] for name in ("launches", "mark_steps", "collectives", "moe_launches", "moe_tensor_inputs")
    }


def summary(meter: Meter) -> dict[str, Any]:
    """JSON-able summary of a process."""
    if torch.distributed.is_initialized():  # at exit it no longer is
        meter.rank = torch.distributed.get_rank()
    return {
        "rank": meter.rank,
        "pid": os.getpid(),
        "steps": dict(meter.steps),
        "step_seconds": meter.step_seconds,
        "phases": {name: counts.summary() for name, counts in list(meter.phases.items())},
        "layers": {
            kind: {layer: _layer(counts) for layer, counts in layers.items()} for kind, layers in meter.layers.items()
        },
        "compiles_after_warmup": meter.compiles_after_warmup,
        "warmed_up": meter.warmed_up,
        "memory_peak": memory.max_memory_allocated(),
        "missing": list(watch.missing),
        "overhead": overhead(meter),
        "records": meter.records,
    }


def install(path: str) -> None:
    """Count from now on and write the summary at exit (and once a second) to `path`; `{pid}` is replaced."""
    meter = Meter()
    last = 0.0

    def write() -> None:
        if not meter.steps and not meter.phases:
            return  # a process that never touched the device
        target = Path(path.replace("{pid}", str(os.getpid())))
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps(summary(meter)))
            partial.replace(target)
        except FileNotFoundError:
            return  # the folder went away with the run that asked

    def flush() -> None:
        nonlocal last
        if time.monotonic() - last > _FLUSH_SECONDS:
            write()
            last = time.monotonic()

    _attach(meter)
    watch.install(meter, flush)
    atexit.register(write)
    _at_end(write)
    os.register_at_fork(after_in_child=meter.restart)
    multiprocessing_util.register_after_fork(meter, lambda _: _at_end(write))  # it has just dropped its finalizers


def _at_end(write: Callable[[], None]) -> None:
    """The ends that atexit does not see: a child of multiprocessing, and a SIGTERM nobody handles."""
    multiprocessing_util.Finalize(None, write, exitpriority=0)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def terminated(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            write()
        finally:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, terminated)
