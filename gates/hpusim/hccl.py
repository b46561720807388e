# SPDX-License-Identifier: Apache-2.0
"""The `hccl` process-group backend: gloo underneath. Each collective is reported with its bytes and type.

The bytes are those of the first argument that holds tensors: the output where there are two, the whole list where it is
one. `batch_isend_irecv` is reported by the sends and receives it consists of. Torch writes some of these functions by
means of others: the one that was called is reported. `torch.compile` turns them into operators, which are reported when
the graph runs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gates.hpusim import probe, tracker

# Called with (name, tensor, group) before a collective; fault models may delay, hang or die here.
collective_hooks: list[Callable[[str, torch.Tensor, Any], None]] = []
_running = threading.local()  # the collective this thread is in
COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _counted(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_running, "name", None):
            return original(*args, **kwargs)
        if tensors := _tensors_on_card((*args, *kwargs.values())):
            _report(name, tensors, _bytes(tensors), kwargs.get("group"))
        _running.name = name
        try:
            return original(*args, **kwargs)
        finally:
            _running.name = None

    return collective


def _functional(operator: Any, args: tuple, kwargs: dict) -> None:
    """One of torch's functional collectives is about to run; its argument is the input, so the output is computed."""
    name = operator._schema.name.rpartition("::")[2].rstrip("_")
    names = [argument.name for argument in operator._schema.arguments]
    tensors = _tensors_on_card(args)
    if "group_name" not in names or not tensors:  # waiting and wrapping move nothing between ranks
        return
    values = dict(zip(names, args, strict=False)) | kwargs
    size = int(values.get("group_size", 1))
    nbytes = _bytes(tensors)
    nbytes = nbytes * size if name.startswith("all_gather") else nbytes // size
    _report(name, tensors, nbytes, values.get("group_name"))


def _report(name: str, tensors: list[torch.Tensor], nbytes: int, group: Any) -> None:
    if probe.listeners:
        probe.emit("collective", nbytes, op=name, dtype=str(tensors[0].dtype), caller=probe.caller())
    for hook in collective_hooks:
        hook(name, tensors[0], group)


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors_on_card(arguments: tuple) -> list[torch.Tensor]:
    """Those of the first argument that holds any."""
    return next((found for argument in arguments if (found := _on_card(argument))), [])


def _on_card(value: Any) -> list[torch.Tensor]:
    """The tensors of one argument, however deep, that live on the card."""
    from gates.hpusim.residency import is_device

    if isinstance(value, torch.Tensor):
        return [value] if is_device(value) else []
    return [tensor for entry in value for tensor in _on_card(entry)] if isinstance(value, (list, tuple)) else []


def install() -> None:
    if not dist.is_available():
        raise RuntimeError("the emulated Gaudi needs a torch build with torch.distributed")
    if "HCCL" not in dist.Backend.__dict__:
        dist.Backend.register_backend("hccl", _create, devices=["cpu", "hpu"])
    tracker.before_collective.append(_functional)
    for name in COLLECTIVES:
        original = getattr(dist, name, None)
        if original is None:  # not every torch has them all
            continue
        wrapper = _counted(original)
        setattr(dist, name, wrapper)
        if getattr(dist.distributed_c10d, name, None) is original:
            setattr(dist.distributed_c10d, name, wrapper)
