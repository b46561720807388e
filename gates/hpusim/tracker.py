# SPDX-License-Identifier: Apache-2.0
"""Follows device residency through every operator: an output is on the device when an input is.

A dispatch mode pushed once, in the main thread, when torch loads the stand-in. It sits at the bottom of the mode stack
and is never popped; other modes nest above it. Under `torch.compile` it steps aside for tracing and sees the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gates.hpusim import probe
from gates.hpusim.residency import is_device, to_device
from gates.hpusim.settings import settings

_paused = 0
# Called with (operator, args, kwargs, output) for every operator that touches the device.
op_hooks: list[Callable[[Any, tuple, dict, Any], None]] = []
# Operators whose result the host must read before it can go on: value reads and data-dependent shapes.
SYNCING = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::equal",
        "aten::is_nonzero",
        "aten::repeat_interleave.Tensor",
        "aten::bincount",
    }
)


@contextmanager
def paused() -> Iterator[None]:
    """Operators inside leave no trace: for the emulation's own work."""
    global _paused
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class Tracker(TorchDispatchMode):
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if _paused:
            return out
        inputs = list(_tensors(args))
        if kwargs:
            inputs.extend(_tensors(kwargs.values()))
        on_device = [is_device(tensor) for tensor in inputs]
        if not any(on_device):
            return out
        if not all(on_device):
            _mixed(func, inputs, on_device)
        outputs = (
            (out,) if isinstance(out, torch.Tensor) else tuple(_tensors(out)) if isinstance(out, (list, tuple)) else ()
        )
        for tensor in outputs:
            if not any(tensor is given for given in inputs):
                to_device(tensor)
        if probe.listeners and func.name() in SYNCING:
            probe.emit("sync", op=func.name())
            if func.name() == "aten::_local_scalar_dense":
                probe.emit("d2h", inputs[0].element_size(), blocking=True)
        for hook in op_hooks:
            hook(func, args, kwargs, out)
        return out


def _mixed(func: Any, inputs: list[torch.Tensor], on_device: list[bool]) -> None:
    """Report an operator that mixes host and device tensors; zero-dimensional host tensors are allowed."""
    hosts = [tensor for tensor, device in zip(inputs, on_device, strict=True) if not device and tensor.dim() > 0]
    if not hosts:
        return
    if probe.listeners:
        probe.emit("mixed", op=func.name())
    if settings().mix == "raise":
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in hosts)
        raise RuntimeError(
            f"{func.name()}: expected all tensors on hpu:0, but host tensors of shape {shapes} were given"
        )


def install() -> None:
    Tracker().__enter__()
