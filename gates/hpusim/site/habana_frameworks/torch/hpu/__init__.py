# SPDX-License-Identifier: Apache-2.0
"""`torch.hpu`."""

from contextlib import nullcontext

from gates.hpusim.memory import (
    max_memory_allocated,
    mem_get_info,
    memory_allocated,
    memory_stats,
    reset_peak_memory_stats,
)
from gates.hpusim.runtime import (
    can_device_access_peer,
    current_device,
    device_count,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    manual_seed_all,
    set_device,
    synchronize,
)
from gates.hpusim.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from habana_frameworks.torch.hpu import graphs, memory, metrics, random
from habana_frameworks.torch.hpu.graphs import HPUGraph, wrap_in_hpu_graph, wrap_in_hpu_graph_func

max_memory_reserved = max_memory_allocated
memory_reserved = memory_allocated
manual_seed = manual_seed_all
_is_in_bad_fork = lambda: False  # noqa: E731 - torch asks for it when it seeds
_lazy_init = init
device = nullcontext  # one card a process: entering a device changes nothing


def empty_cache() -> None:
    """Freed memory returns at once: there is no cache."""


def is_bf16_supported() -> bool:
    return True


def is_autocast_hpu_enabled() -> bool:
    return False


def __getattr__(name: str) -> object:
    raise AttributeError(f"torch.hpu.{name} is not emulated")


__all__ = [
    "Event",
    "HPUGraph",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "graphs",
    "init",
    "is_autocast_hpu_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "metrics",
    "random",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
    "wrap_in_hpu_graph",
    "wrap_in_hpu_graph_func",
]
