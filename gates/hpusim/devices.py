# SPDX-License-Identifier: Apache-2.0
"""Device names: everything that takes `device="hpu"` in torch makes a CPU tensor and books it as device memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device as torch_device

from gates.hpusim import tracker
from gates.hpusim.residency import is_device, pin, to_device
from gates.hpusim.settings import settings

CPU = torch.device("cpu")
# Take the device of their first argument when none is named.
LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")


def is_hpu(device: Any) -> bool:
    """True when `device` names the emulated card; RuntimeError for an index the machine does not have."""
    if isinstance(device, int) and not isinstance(device, bool):
        index: int | None = device
    elif isinstance(device, str):
        if not device.startswith("hpu"):
            return False
        index = torch.device(device).index
    elif isinstance(device, torch.device):
        if device.type != "hpu":
            return False
        index = device.index
    else:
        return False
    if torch.compiler.is_dynamo_compiling() or index is None:
        return True
    if not 0 <= index < settings().devices:
        raise RuntimeError(
            f"hpu:{index} does not exist: the emulated machine has {settings().devices} (HPUSIM_DEVICES)"
        )
    return True


def _is_real(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) or (
        isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch._subclasses.FakeTensor)
    )


def mark(tensor: Any) -> Any:
    """Book the tensor a factory made; fake tensors of a tracer own no memory."""
    return to_device(tensor) if isinstance(tensor, torch.Tensor) and _is_real(tensor) else tensor


def _arrived(tensor: Any) -> Any:
    """Book what a factory made of Python values: they travelled from the host, which waited for it."""
    from gates.hpusim.transfers import moved

    out = mark(tensor)
    if isinstance(out, torch.Tensor) and _is_real(out) and not out.is_meta and out.numel():
        moved(out, out, True, False)
    return out


def _carries(name: str, args: tuple, kwargs: dict) -> bool:
    """True for `torch.tensor` and `Tensor.new_tensor` of values that are not a tensor already."""
    position = {"tensor": 0, "new_tensor": 1}.get(name)
    if position is None:
        return False
    return not isinstance(args[position] if len(args) > position else kwargs.get("data"), torch.Tensor)


def _factory(original: Callable[..., Any], like: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        pinned = kwargs.pop("pin_memory", False)
        if torch.compiler.is_dynamo_compiling():  # the graph's tensors are booked when it runs
            if device is not None and is_hpu(device):
                kwargs["device"] = CPU
            return original(*args, **kwargs)
        on_card = is_hpu(device) if device is not None else bool(like and args and is_device(args[0]))
        if on_card and device is not None:
            kwargs["device"] = CPU
        if like:
            with tracker.paused():  # the place is decided here, not by where the pattern tensor lives
                out = original(*args, **kwargs)
        else:
            out = original(*args, **kwargs)
        if on_card:
            (_arrived if _carries(original.__name__, args, kwargs) else mark)(out)
        return pin(out) if pinned and not is_device(out) else out

    return wrapper


def _from_data(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.as_tensor`, `torch.asarray`: may return their input, so a move goes through `Tensor.to`."""

    @functools.wraps(original)
    def wrapper(data: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        if device is None:
            return original(data, *args, **kwargs)
        if is_hpu(device) or (isinstance(data, torch.Tensor) and is_device(data)):
            return original(data, *args, **kwargs).to(device)
        return original(data, *args, device=device, **kwargs)

    return wrapper


class Generator(torch._C.Generator):
    """`torch.Generator`; one for the card is a CPU generator, so its random stream is not the card's."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls, device=CPU if device is None or is_hpu(device) else device)


def _patch_device_context() -> None:
    """`with torch.device("hpu")` and `torch.set_default_device("hpu")`."""
    context = torch_device.DeviceContext
    original_init, original_call = context.__init__, context.__torch_function__

    def init(self: Any, device: Any) -> None:
        self.on_hpu = is_hpu(device)
        original_init(self, CPU if self.on_hpu else device)

    def call(self: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        made_here = self.on_hpu and kwargs.get("device") is None and func in torch_device._device_constructors()
        out = original_call(self, func, types, args, kwargs)
        if not made_here:
            return out
        return _arrived(out) if _carries(func.__name__, args, kwargs) else mark(out)

    context.__init__ = init
    context.__torch_function__ = call


def install() -> None:
    # The set of constructors is computed from torch's attributes on first use: it must hold the originals.
    constructors = torch_device._device_constructors()
    for name in sorted({getattr(function, "__name__", "") for function in constructors} | set(LIKE)):
        original = getattr(torch, name, None)
        if original is not None and (original in constructors or name in LIKE):
            wrap = _from_data if name in ("as_tensor", "asarray") else functools.partial(_factory, like=name in LIKE)
            setattr(torch, name, wrap(original))
    for name in NEW:
        setattr(torch.Tensor, name, _factory(getattr(torch.Tensor, name), like=True))
    torch.Generator = Generator
    _patch_device_context()
    original_load = torch.load

    @functools.wraps(original_load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        places = map_location.values() if isinstance(map_location, dict) else (map_location,)
        if any(is_hpu(place) for place in places):
            raise NotImplementedError(
                "torch.load(map_location='hpu') is not emulated: load on the host, then .to('hpu')"
            )
        return original_load(f, map_location, *args, **kwargs)

    torch.load = load
