# SPDX-License-Identifier: Apache-2.0
"""The `hccl` process-group backend: gloo underneath. Each collective is reported with its bytes and type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gates.hpusim import probe

# Called with (name, tensor, group) before a collective; fault models may delay, hang or die here.
collective_hooks: list[Callable[[str, torch.Tensor, Any], None]] = []
_TENSOR_FIRST = (
    "all_reduce",
    "broadcast",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "send",
    "recv",
    "isend",
    "irecv",
    "reduce",
)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    @functools.wraps(original)
    def collective(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        from gates.hpusim.residency import is_device

        if isinstance(tensor, torch.Tensor) and is_device(tensor):
            if probe.listeners:
                nbytes = tensor.numel() * tensor.element_size()
                probe.emit("collective", nbytes, op=name, dtype=str(tensor.dtype), caller=probe.caller())
            for hook in collective_hooks:
                hook(name, tensor, kwargs.get("group"))
        return original(tensor, *args, **kwargs)

    return collective


def install() -> None:
    if not dist.is_available():
        raise RuntimeError("the emulated Gaudi needs a torch build with torch.distributed")
    if "HCCL" not in dist.Backend.__dict__:
        dist.Backend.register_backend("hccl", _create, devices=["cpu", "hpu"])
    for name in _TENSOR_FIRST:
        original = getattr(dist, name)
        wrapper = _counted(original)
        setattr(dist, name, wrapper)
        if getattr(dist.distributed_c10d, name, None) is original:
            setattr(dist.distributed_c10d, name, wrapper)
