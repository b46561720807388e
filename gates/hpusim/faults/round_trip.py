# SPDX-License-Identifier: Apache-2.0
"""The graph compiler drops round trips to bf16: `x.to(bf16).float()` inside one graph is `x`, unrounded.

So is what widens without a word: a view of the rounded tensor, and an operator that promotes it beside fp32.
A reference that relies on such a rounding point does not get it on the device, unless it rounds with integer
operations. Graphs end at mark_step, collectives and reads by the host: there values are materialised in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from gates.hpusim import probe, tracker
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo

_WIDE = "_hpusim_wide"
_CUTS = ("mark_step", "collective", "sync")
_NARROW = (torch.bfloat16, torch.float16)
# Under inference_mode a cast arrives as `to`, otherwise as `_to_copy`.
_TO = torch.ops.aten.to
_CASTS = (torch.ops.aten._to_copy.default, _TO.dtype, _TO.dtype_layout, _TO.device, _TO.other)
# Beside these and what torch tags pointwise or a reduction.
_WIDENING = (*_CASTS, torch.ops.aten.cat.default, torch.ops.aten.softmax.int, torch.ops.aten.log_softmax.int)


@cache
def _widens(func: Any) -> bool:
    """True for an operator that promotes its inputs and leaves them as they are."""
    tagged = torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags
    drawn = torch.Tag.nondeterministic_seeded in func.tags
    return func in _WIDENING or (tagged and not drawn and func.namespace == "aten" and not func._schema.is_mutable)


class Compiler:
    """Remembers, per bf16 storage, the fp32 values it was rounded from in the graph being built."""

    def __init__(self) -> None:
        self.graph = 0

    def cut(self, kind: str, nbytes: int, info: dict[str, Any]) -> None:
        if kind in _CUTS:
            self.graph += 1

    def operator(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        if not isinstance(out, torch.Tensor):
            return
        if func in _CASTS and args[0].dtype is torch.float32 and out.dtype in _NARROW:
            storage = out.untyped_storage()
            wide = torch.zeros(storage.nbytes() // out.element_size())
            _same_place(wide, out).copy_(args[0])
            setattr(storage, _WIDE, (self.graph, out.dtype, wide))
        elif out.dtype is torch.float32 and _widens(func):
            given = tree_map_only(torch.Tensor, self._unrounded, (args, kwargs))
            if any(a is not b for a, b in zip(tree_leaves(given), tree_leaves((args, kwargs)), strict=True)):
                out.copy_(func(*given[0], **given[1]))

    def _unrounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """What `tensor` was rounded from, where it still holds that; itself when that is nowhere."""
        if tensor.dtype not in _NARROW:
            return tensor
        storage = tensor.untyped_storage()
        graph, dtype, wide = getattr(storage, _WIDE, (-1, None, None))
        if graph != self.graph or dtype is not tensor.dtype or wide.numel() * tensor.element_size() != storage.nbytes():
            return tensor
        wide = _same_place(wide, tensor)
        return torch.where(wide.to(dtype) == tensor, wide, tensor.float())


def _same_place(wide: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return wide.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def start(fault: Fault) -> Callable[[], None]:
    compiler, undo = Compiler(), Undo()

    def operator(func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        with tracker.paused(), torch.inference_mode():
            compiler.operator(func, args, kwargs, out)

    undo.append(tracker.op_hooks, operator)
    undo.append(probe.listeners, compiler.cut)
    return undo
