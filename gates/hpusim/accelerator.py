# SPDX-License-Identifier: Apache-2.0
"""`torch.accelerator` as it looks with the card present."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gates.hpusim import memory, runtime, streams
from gates.hpusim.devices import is_hpu


class _DeviceIndex:
    """`torch.accelerator.device_index(i)`: one card a process, so nothing changes."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __enter__(self) -> None:
        if self.device is not None:
            is_hpu(self.device)

    def __exit__(self, *exc: Any) -> None:
        return None


def _empty_host_cache() -> None:
    """Nothing is cached on the host."""


def _refused(name: str, original: Any) -> Any:
    """Torch's own would say that no accelerator is there; this one says what is missing. A class stays one."""

    @functools.wraps(original, updated=())
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torch.accelerator.{name} is not emulated")

    return type(name, (original,), {"__new__": refuse}) if isinstance(original, type) else refuse


def _refuse_autocast(original: Any) -> Any:
    @functools.wraps(original)
    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if enabled and device_type == "hpu":
            raise NotImplementedError(
                "torch.autocast('hpu') is not emulated, it would change nothing: cast the tensors, or enabled=False"
            )
        original(self, device_type, dtype, enabled, cache_enabled)

    return init


def install() -> None:
    torch.autocast.__init__ = _refuse_autocast(torch.autocast.__init__)
    api = torch.accelerator
    replacements: dict[str, Any] = {
        "is_available": runtime.is_available,
        "device_count": runtime.device_count,
        "current_accelerator": lambda check_available=False: torch.device("hpu"),
        "current_device_index": runtime.current_device,
        "current_device_idx": runtime.current_device,
        "set_device_index": runtime.set_device,
        "set_device_idx": runtime.set_device,
        "device_index": _DeviceIndex,
        "synchronize": runtime.synchronize,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "empty_cache": lambda: None,  # no cache: freed memory returns at once
        "empty_host_cache": _empty_host_cache,
        "memory_stats": memory.memory_stats,
        "memory_allocated": memory.memory_allocated,
        "memory_reserved": memory.memory_allocated,
        "max_memory_allocated": memory.max_memory_allocated,
        "max_memory_reserved": memory.max_memory_allocated,
        "reset_peak_memory_stats": memory.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": memory.reset_peak_memory_stats,
        "get_memory_info": memory.mem_get_info,
    }
    for name in api.__all__:
        setattr(api, name, replacements.get(name) or _refused(name, getattr(api, name)))
