# SPDX-License-Identifier: Apache-2.0
"""Memory that holds junk wherever nothing has been written.

`fresh`: tensors made by `torch.empty` and its relatives on the device. `kv`: the null block, the padding block and the
blocks the scheduler has freed, before every step (kv_blocks.py). `all`: both.

`value=huge` is finite: code that masks what it must not read still gives the right answer, code that reads it does not.
`value=nan` also punishes what is masked afterwards by adding -inf or multiplying by zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim import tracker
from gates.hpusim.faults import garbage, kv_blocks
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo
from gates.hpusim.residency import is_device

_VALUES = {"huge": garbage.HUGE, "nan": float("nan")}
_FACTORIES = (
    (torch, ("empty", "empty_like", "empty_permuted", "empty_strided")),
    (torch.Tensor, ("new_empty", "new_empty_strided")),
)


def _poisoned(original: Callable[..., Any], value: float) -> Callable[..., Any]:
    @functools.wraps(original)
    def factory(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        fake = isinstance(out, torch._subclasses.FakeTensor)
        if isinstance(out, torch.Tensor) and not fake and is_device(out):
            with tracker.paused():
                garbage.fill(out, value)
        return out

    return factory


def _grown(original: Callable[..., Any], value: float) -> Callable[..., Any]:
    """`resize_` and its like: what the storage has more than before."""

    @functools.wraps(original)
    def resize(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, torch._subclasses.FakeTensor) or not is_device(self):
            return original(self, *args, **kwargs)
        before = self.untyped_storage().nbytes() // self.element_size()
        out = original(self, *args, **kwargs)
        with tracker.paused(), torch.inference_mode():
            storage = self.untyped_storage()
            whole = torch.empty(0, dtype=self.dtype).set_(storage, 0, (storage.nbytes() // self.element_size(),))
            garbage.fill(whole[before:], value)
        return out

    return resize


def start(fault: Fault) -> Callable[[], None]:
    name = fault.options["value"]
    undo = Undo()
    if fault.kind in ("fresh", "all"):
        for owner, names in _FACTORIES:
            for factory in names:
                undo.replace(owner, factory, _poisoned(getattr(owner, factory), _VALUES[name]))
        for method in ("resize_", "resize_as_"):
            undo.replace(torch.Tensor, method, _grown(getattr(torch.Tensor, method), _VALUES[name]))
    if fault.kind in ("kv", "all"):
        kv_blocks.start(undo, _VALUES[name])
    return undo
