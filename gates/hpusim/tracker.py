# SPDX-License-Identifier: Apache-2.0
"""Follows device residency through every operator: an output is on the device when an input is.

A dispatch mode pushed once, in the main thread, when torch loads the stand-in. It sits at the bottom of the mode stack
and is never popped; other modes nest above it. Under `torch.compile` it steps aside for tracing and sees the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gates.hpusim import probe
from gates.hpusim.residency import is_device, rebook, to_device, unbooked
from gates.hpusim.settings import settings


class _State(threading.local):
    paused = 0  # per thread: another thread's own work must not hide this one's
    compiled = 0  # inside a compiled graph everything, constants too, is on the card


_state = _State()
# Called with (operator, args, kwargs, output) for every operator that touches the device.
op_hooks: list[Callable[[Any, tuple, dict, Any], None]] = []
# Called with (operator, args, kwargs) before one of torch's functional collectives runs.
before_collective: list[Callable[[Any, tuple, dict], None]] = []
# What torch says of operators whose result the host must read before it can go on.
_WAITED_FOR = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Tagged so, but without a read on the card: indices need one when a mask selects, one_hot checks nothing there.
_NOT_READ = {torch.ops.aten.index.Tensor, torch.ops.aten.one_hot.default}


def is_paused() -> bool:
    return _state.paused > 0


# `Tensor.item()`, `int()`, `bool()`: a copy to the host, no work of the device. Under inference_mode they arrive whole.
READS = frozenset(
    {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default, torch.ops.aten.is_nonzero.default}
)
# A host index (a Python list, say) into a device tensor is legal: torch copies it over first.
INDEXING = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default})


@contextmanager
def compiled_graph() -> Iterator[None]:
    """A compiled graph runs: what it makes from nothing is made on the card."""
    _state.compiled += 1
    try:
        yield
    finally:
        _state.compiled -= 1


@contextmanager
def paused() -> Iterator[None]:
    """Operators inside leave no trace: for the emulation's own work."""
    _state.paused += 1
    try:
        yield
    finally:
        _state.paused -= 1


@contextmanager
def inside_kernel() -> Iterator[None]:
    """The arithmetic of what the device has as one kernel: no operators, no copies, no memory but the results."""
    with paused(), unbooked():
        yield


def performed(func: Any, args: tuple, out: torch.Tensor) -> None:
    """Book and report one operator of the device whose arithmetic ran out of sight."""
    if _state.paused:
        return
    to_device(out)
    for hook in op_hooks:
        hook(func, args, {}, out)


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
        if func.namespace == "_c10d_functional" and not _state.paused:
            for before in before_collective:
                before(func, args, kwargs)
        out = func(*args, **kwargs)
        if _state.paused:
            return out
        inputs = list(_tensors(args))
        if kwargs:
            inputs.extend(_tensors(kwargs.values()))
        if _state.compiled and not inputs and isinstance(out, torch.Tensor):
            return to_device(out)
        on_device = [is_device(tensor) for tensor in inputs]
        if not any(on_device):
            return out
        if func is torch.ops.aten.copy_.default and on_device[0] != on_device[1]:
            _copied(inputs[0], inputs[1], on_device[0], args)  # from C++, such as tensor[...] = value
            return out
        if not all(on_device) and not (func in INDEXING and _indices(inputs, on_device)):
            _mixed(func, inputs, on_device)
        outputs = (
            (out,) if isinstance(out, torch.Tensor) else tuple(_tensors(out)) if isinstance(out, (list, tuple)) else ()
        )
        for tensor in outputs:
            (rebook if any(tensor is given for given in inputs) else to_device)(tensor)
        if _reads_value(func):
            probe.host_read(func.name())
        waits = bool(probe.listeners) and _syncs(func, kwargs, inputs, on_device)
        if waits and func in INDEXING:  # the mask is read before the operator can run
            _sync(func, inputs)
        for hook in op_hooks:
            hook(func, args, kwargs, out)
        if waits and func not in INDEXING:
            _sync(func, inputs)
        return out


def _sync(func: Any, inputs: list[torch.Tensor]) -> None:
    probe.emit("sync", op=func.name(), caller=probe.caller())
    if func in READS:
        probe.emit("d2h", inputs[0].element_size(), blocking=True, caller=probe.caller())


@cache
def _reads_value(func: Any) -> bool:
    return func in READS or (func not in _NOT_READ and torch.Tag.data_dependent_output in func.tags)


@cache
def _read_by_host(func: Any) -> bool:
    return func in READS or (func not in _NOT_READ and bool(_WAITED_FOR & set(func.tags)))


def _syncs(func: Any, kwargs: dict, inputs: list[torch.Tensor], on_device: list[bool]) -> bool:
    """True when the host waits for the result: a value is read, or its shape depends on values."""
    if func in INDEXING:
        return _by_mask(inputs, on_device)
    if kwargs.get("output_size") is not None:  # repeat_interleave that is told how long its result is
        return False
    return _read_by_host(func)


def _copied(destination: torch.Tensor, source: torch.Tensor, to_hpu: bool, args: tuple) -> None:
    from gates.hpusim.transfers import moved

    moved(destination, source, to_hpu, bool(args[2]) if len(args) > 2 else False)


def _by_mask(inputs: list[torch.Tensor], on_device: list[bool]) -> bool:
    """True when a mask on the card selects: how many elements, the host must ask."""
    return any(device and tensor.dtype == torch.bool for tensor, device in zip(inputs[1:], on_device[1:], strict=True))


def _indices(inputs: list[torch.Tensor], on_device: list[bool]) -> bool:
    """Report host indices as copies; False when something other than an index is on the host."""
    hosts = [tensor for tensor, device in zip(inputs, on_device, strict=True) if not device]
    if not on_device[0] or any(tensor.dtype.is_floating_point for tensor in hosts):
        return False
    for tensor in hosts:
        if probe.listeners:
            probe.emit("h2d", tensor.numel() * tensor.element_size(), blocking=False, caller=probe.caller())
    return True


def _mixed(func: Any, inputs: list[torch.Tensor], on_device: list[bool]) -> None:
    """Report an operator that mixes host and device tensors; zero-dimensional host tensors are allowed."""
    hosts = [tensor for tensor, device in zip(inputs, on_device, strict=True) if not device and tensor.dim() > 0]
    if not hosts:
        return
    if probe.listeners:
        probe.emit("mixed", op=func.name(), caller=probe.caller())
    if settings().mix == "raise":
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in hosts)
        raise RuntimeError(
            f"{func.name()}: expected all tensors on hpu:0, but host tensors of shape {shapes} were given"
        )


def install() -> None:
    Tracker().__enter__()
