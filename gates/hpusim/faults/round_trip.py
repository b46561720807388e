# SPDX-License-Identifier: Apache-2.0
"""The graph compiler drops round trips to bf16: `x.to(bf16).float()` inside one graph is `x`, unrounded.

A reference that relies on such a rounding point does not get it on the device, unless it rounds with integer
operations. Graphs end at mark_step, collectives and reads by the host: there values are materialised in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim import probe, tracker
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo

_WIDE = "_hpusim_wide"
_CUTS = ("mark_step", "collective", "sync")
_NARROW = (torch.bfloat16, torch.float16)
# Under inference_mode a cast arrives as `to`, otherwise as `_to_copy`.
_TO = torch.ops.aten.to
_CASTS = (torch.ops.aten._to_copy.default, _TO.dtype, _TO.dtype_layout, _TO.device, _TO.other)


class Compiler:
    """Remembers, per bf16 storage, the fp32 tensor it was rounded from in the graph being built."""

    def __init__(self) -> None:
        self.graph = 0

    def cut(self, kind: str, nbytes: int, info: dict[str, Any]) -> None:
        if kind in _CUTS:
            self.graph += 1

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        if func not in _CASTS or not isinstance(out, torch.Tensor):
            return
        source = args[0]
        if source.dtype is torch.float32 and out.dtype in _NARROW:
            setattr(out.untyped_storage(), _WIDE, (self.graph, source.detach().clone()))
        elif source.dtype in _NARROW and out.dtype is torch.float32:
            self._widen(source, out)

    def _widen(self, source: torch.Tensor, out: torch.Tensor) -> None:
        graph, wide = getattr(source.untyped_storage(), _WIDE, (-1, None))
        whole = source.is_contiguous() and source.storage_offset() == 0
        if graph != self.graph or not whole or wide.numel() != source.numel():
            return
        wide = wide.contiguous().reshape(source.shape)
        if torch.equal(wide.to(source.dtype), source):  # still what was rounded: nothing wrote to it since
            out.copy_(wide)


def start(fault: Fault) -> Callable[[], None]:
    compiler, undo = Compiler(), Undo()

    def operator(func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        with tracker.paused(), torch.inference_mode():
            compiler.operator(func, args, kwargs, out)

    undo.append(tracker.op_hooks, operator)
    undo.append(probe.listeners, compiler.cut)
    return undo
