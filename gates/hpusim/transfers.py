# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device: `Tensor.to/.cpu/.hpu/.copy_`, and host reads of device tensors.

A move always makes new storage, as on hardware; each is reported with its bytes, whether it blocks, and who asked.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str
from torch._guards import TracingContext

from gates.hpusim import probe, tracker
from gates.hpusim.devices import CPU, _is_real, is_hpu
from gates.hpusim.residency import is_device, is_pinned, pin, to_device

HPU = torch.device("hpu", 0)
# Called with (destination, source, non_blocking) after a copy between host and device; fault models hook in here.
copy_hooks: list[Callable[[torch.Tensor, torch.Tensor, bool], None]] = []


def moved(destination: torch.Tensor, source: torch.Tensor, to_hpu: bool, non_blocking: bool) -> None:
    """Report one copy between host and device, and let the fault models at it."""
    if tracker.is_paused():
        return
    if not to_hpu and not non_blocking:
        probe.host_read("copy to host")
    if probe.listeners:
        kind = "h2d" if to_hpu else "d2h"
        nbytes = source.numel() * source.element_size()
        probe.emit(kind, nbytes, blocking=not non_blocking, caller=probe.caller())
        if not to_hpu and not non_blocking:
            probe.emit("sync", op="copy to host", caller=probe.caller())
    for hook in copy_hooks:
        hook(destination, source, non_blocking)


def _split(args: tuple, kwargs: dict) -> tuple[Any, tuple, dict]:
    """Target of a `Tensor.to` call: True (device), False (host) or None (unchanged), and the call without the name."""
    if "device" in kwargs:
        device = kwargs["device"]
        kwargs = {**kwargs, "device": CPU if device is not None and is_hpu(device) else device}
        return (None if device is None else is_hpu(device)), args, kwargs
    if "other" in kwargs:
        return is_device(kwargs["other"]), args, kwargs
    if args:
        first = args[0]
        if isinstance(first, torch.Tensor):
            return is_device(first), args, kwargs
        if isinstance(first, (str, torch.device, int)) and not isinstance(first, bool):
            target = is_hpu(first)
            return target, (CPU if target else first, *args[1:]), kwargs
    return None, args, kwargs


def _to(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        target, args, kwargs = _split(args, kwargs)
        if target is None or not _is_real(self) or self.is_meta:
            out = original(self, *args, **kwargs)
            return to_device(out) if target and _is_real(out) and not out.is_meta else out
        if is_device(self) == target:
            # A subclass, or a mode such as `with torch.device(...)`, would come back here with the CPU's name.
            with torch._C.DisableTorchFunction():
                return original(self, *args, **kwargs)
        position = (
            1 if args and isinstance(args[0], torch.Tensor) else 2
        )  # to(other, non_blocking), to(device, dtype, ...)
        non_blocking = bool(kwargs.get("non_blocking", len(args) > position and args[position]))
        kwargs = {key: value for key, value in kwargs.items() if key != "copy"}
        with tracker.paused(), torch._C.DisableTorchFunction():
            out = original(self, *args, **kwargs)
            if out.untyped_storage().data_ptr() == self.untyped_storage().data_ptr():
                out = out.clone()
        if out.is_meta:
            return out
        if target:
            to_device(out)
        moved(out, self, target, non_blocking)
        return out

    return to


def _copy_(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not (_is_real(self) and isinstance(src, torch.Tensor) and _is_real(src)) or is_device(self) == is_device(
            src
        ):
            return original(self, src, non_blocking)
        with tracker.paused(), torch._C.DisableTorchFunction():
            original(self, src, non_blocking)
        moved(self, src, is_device(self), non_blocking)
        return self

    return copy_


def _host_read(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`tolist` of a device tensor: waits for the device and copies."""

    @functools.wraps(original)
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (_is_real(self) and is_device(self)) or tracker.is_paused():
            return original(self, *args, **kwargs)
        probe.host_read(name)
        _read(self.numel() * self.element_size(), name)
        with tracker.paused():
            return original(self, *args, **kwargs)

    return read


def _read(nbytes: int, name: str) -> None:
    if probe.listeners:
        probe.emit("d2h", nbytes, blocking=True, caller=probe.caller())
        probe.emit("sync", op=name, caller=probe.caller())


def _repr(original: Callable[..., Any]) -> Callable[..., Any]:
    """Printing reads the values that are shown."""

    @functools.wraps(original)
    def tensor_repr(self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        if tracker.is_paused() or not (_is_real(self) and is_device(self)) or self.is_meta:
            return original(self, *args, **kwargs)
        with tracker.paused():
            if probe.listeners:
                shown = self.detach()
                if self.numel() > _tensor_str.PRINT_OPTS.threshold:
                    shown = _tensor_str.get_summarized_data(shown)
                probe.emit("tensor_repr", source=probe.source())
                _read(shown.numel() * shown.element_size(), "repr")
            return original(self, *args, **kwargs)

    return tensor_repr


class _Saving(threading.local):
    storages: set[int] | None = None  # those `torch.save` has read so far


_saving = _Saving()


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        before, _saving.storages = _saving.storages, set()
        try:
            return original(*args, **kwargs)
        finally:
            _saving.storages = before

    return save


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.save` copies the whole storage of a tensor to the host, once however many tensors share it."""

    @functools.wraps(original)
    def reduce(self: torch.Tensor, protocol: Any) -> Any:
        if _saving.storages is not None and _is_real(self) and is_device(self):
            storage = self.untyped_storage()
            if storage._cdata not in _saving.storages:
                _saving.storages.add(storage._cdata)
                probe.host_read("torch.save")
                _read(storage.nbytes(), "torch.save")
        return original(self, protocol)

    return reduce


def _refuse(original: Callable[..., Any], what: str = "numpy") -> Callable[..., Any]:
    """Other libraries cannot read device memory: the error of the real device, not a silent view."""

    @functools.wraps(original)
    def view(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, torch.Tensor) and _is_real(self) and is_device(self):
            raise TypeError(f"can't convert an hpu:0 tensor to {what}: copy it to host memory first with Tensor.cpu()")
        return original(self, *args, **kwargs)

    return view


def _deepcopy(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def deepcopy(self: torch.Tensor, memo: dict) -> Any:
        if not (_is_real(self) and is_device(self)) or id(self) in memo:
            return original(self, memo)
        with tracker.paused():  # one copy on the card, whatever torch writes it with
            out = original(self, memo)
        tracker.performed(torch.ops.aten.clone.default, (self,), to_device(out))
        return out

    return deepcopy


def _device(original: Any) -> property:
    """`Tensor.device` names the card for a tensor that lives there, except to a tracer, whose fakes are CPU ones."""

    def device(self: torch.Tensor) -> torch.device:
        real = original.__get__(self)
        if real.type == "cpu" and _is_real(self) and is_device(self) and TracingContext.try_get() is None:
            return HPU
        return real

    return property(device)


def install() -> None:
    tensor = torch.Tensor
    tensor.device = _device(torch._C.TensorBase.device)
    tensor.to = _to(tensor.to)
    tensor.cpu = lambda self, *args, **kwargs: self.to(CPU)
    tensor.hpu = lambda self, device=None, non_blocking=False: self.to("hpu", non_blocking=non_blocking)
    tensor.copy_ = _copy_(tensor.copy_)
    tensor.tolist = _host_read(tensor.tolist, "tolist")
    tensor.__repr__ = _repr(tensor.__repr__)
    tensor.__reduce_ex__ = _reduce(tensor.__reduce_ex__)
    torch.save = torch.serialization.save = _save(torch.save)
    tensor.numpy = _refuse(tensor.numpy)
    tensor.__array__ = _refuse(tensor.__array__)
    tensor.__dlpack__ = _refuse(tensor.__dlpack__, "DLPack")
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = _refuse(torch.utils.dlpack.to_dlpack, "DLPack")
    tensor.__deepcopy__ = _deepcopy(tensor.__deepcopy__)
    tensor.is_hpu = property(lambda self: is_device(self))
    tensor.pin_memory = lambda self, device=None: self if is_pinned(self) else pin(self.clone())
    tensor.is_pinned = lambda self, device=None: is_pinned(self)
    torch.nn.Module.hpu = lambda self, device=None: self.to("hpu")
