# SPDX-License-Identifier: Apache-2.0
"""Lazy mode, graph cuts, synchronisation and identity of the card."""

from __future__ import annotations

import os
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from gates.hpusim import probe, streams
from gates.hpusim.settings import settings

_initialised = False


@cache
def is_lazy() -> bool:
    """Lazy mode (graphs cut by mark_step) unless PT_HPU_LAZY_MODE=0; read once, as the bridge does."""
    return os.environ.get("PT_HPU_LAZY_MODE", "1") != "0"


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Cut the lazy graph: what was accumulated becomes one launch. Eager mode has nothing to cut."""
    if is_lazy() and probe.listeners:
        probe.emit("mark_step", caller=probe.caller())
    if sync:
        synchronize()


def synchronize(device: Any = None) -> None:
    """Wait for all device work."""
    streams.host_wait(None, "synchronize")


def init() -> None:
    global _initialised
    _initialised = True


def is_initialized() -> bool:
    return _initialised


def is_available() -> bool:
    return True


def device_count() -> int:
    return settings().devices


def current_device() -> int:
    """Always 0: a process owns one card, whatever its rank."""
    return 0


def set_device(device: Any) -> None:
    from gates.hpusim.devices import is_hpu

    if not is_hpu(device):
        raise ValueError(f"torch.hpu.set_device({device!r}): expected an hpu device or its index")
    init()


def get_device_name(device: Any = None) -> str:
    return settings().personality.device_name


def get_device_capability(device: Any = None) -> str:
    return "1.24.1"


def get_device_properties(device: Any = None) -> Any:
    return SimpleNamespace(name=get_device_name(), total_memory=settings().memory_bytes, major=0, minor=0)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    return device != peer_device


def manual_seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
