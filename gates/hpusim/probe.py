# SPDX-License-Identifier: Apache-2.0
"""Where the emulated device reports what it does; meters and fault models listen.

`emit` is called on every event, so it costs one truth test while nobody listens.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, int, dict[str, Any]], None]
listeners: list[Listener] = []

_SKIP = ("/gates/hpusim/", "/torch/", "/habana_frameworks/", "/contextlib.py")


_state = threading.local()


@contextmanager
def inside_graph() -> Iterator[None]:
    """Events inside happen on the device, in a captured graph: they carry `in_graph`."""
    before = getattr(_state, "graph", False)
    _state.graph = True
    try:
        yield
    finally:
        _state.graph = before


def host_read(op: str) -> None:
    """The host asks for a value of the device; RuntimeError inside a captured graph, where there is none yet."""
    if getattr(_state, "graph", False):
        raise RuntimeError(
            f"{op} at {caller()}: the host cannot read a device value inside a captured HPU graph; read it outside the "
            "wrapped module, or call the module with bypass_hpu_graphs=True"
        )


def emit(kind: str, nbytes: int = 0, **info: Any) -> None:
    """Report one event of `kind`; `nbytes` is the payload size where there is one."""
    if getattr(_state, "graph", False):
        info["in_graph"] = True
    for listener in listeners:
        listener(kind, nbytes, info)


def source() -> str:
    """The line of source that led here, outside torch and the emulation; empty when it cannot be read."""
    frame = _outside()
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _outside() -> Any:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _SKIP) or "/gates/hpusim/testing" in name:
            return frame
        frame = frame.f_back
    return None


def caller() -> str:
    """`file:line function` of the nearest frame that is neither torch nor the emulation."""
    frame = _outside()
    if frame is None:
        return "?"
    short = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
    return f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
