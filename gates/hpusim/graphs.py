# SPDX-License-Identifier: Apache-2.0
"""HPU graphs: capture once per input signature, replay afterwards.

A replay runs the module's Python again (there is nothing to replay on a CPU) but keeps two contracts of the device
that callers see: the outputs of a replay are the capture's own tensors, overwritten each time, and during warm-up
a known signature is not run at all. Cuts and transfers inside a replay are no host work and are reported as `in_graph`.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gates.hpusim import metrics, probe, runtime, tracker


def input_hash(value: Any) -> int:
    """Signature of a call: tensors by metadata, containers element by element, everything else by value."""
    if isinstance(value, torch.Tensor):
        return hash((tuple(value.shape), value.dtype, tuple(value.stride()), value.storage_offset()))
    if isinstance(value, collections.UserDict):
        return hash(tuple((key, tuple(entry)) for key, entry in value.items()))
    if isinstance(value, dict):
        return input_hash(tuple(value.items()))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return hash(tuple(input_hash(entry) for entry in value))
    return hash(value)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def describe(value: Any) -> str:
    """Readable signature: the shapes of the tensors of a call."""
    return " ".join("x".join(map(str, tensor.shape)) or "scalar" for tensor in _tensors(value))


def _end_segment() -> None:
    if probe.listeners:
        probe.emit("graph_end")


class GraphCache:
    """Captured graphs of one callable, by input signature."""

    def __init__(self, function: Callable[..., Any], name: str, max_graphs: int | None) -> None:
        self.function, self.name, self.max_graphs = function, name, max_graphs
        self.outputs: dict[int, Any] = {}
        self.replays: collections.Counter[int] = collections.Counter()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        warmup = kwargs.pop("warmup_mode", False)
        if kwargs.pop("bypass_hpu_graphs", False):
            return self.function(*args, **kwargs)
        kwargs.pop("cache_tensors_list", None)
        key = input_hash((args, kwargs))
        if key not in self.outputs:
            if self.max_graphs is not None and len(self.outputs) >= self.max_graphs:
                return self.function(*args, **kwargs)
            return self._capture(key, args, kwargs)
        if warmup:
            runtime.mark_step()
            return self.outputs[key]
        return self._replay(key, args, kwargs)

    def _capture(self, key: int, args: tuple, kwargs: dict) -> Any:
        if probe.listeners:
            probe.emit("graph_capture", key=key, name=self.name, shapes=describe((args, kwargs)))
        with metrics.compilation(f"{self.name} {describe((args, kwargs))}"), probe.inside_graph():
            out = self.function(*args, **kwargs)
            _end_segment()
        self.outputs[key] = out
        return out

    def _replay(self, key: int, args: tuple, kwargs: dict) -> Any:
        self.replays[key] += 1
        if probe.listeners:
            probe.emit("graph_replay", key=key, name=self.name, shapes=describe((args, kwargs)))
        with probe.inside_graph():
            fresh = self.function(*args, **kwargs)
            _end_segment()
        kept = self.outputs[key]
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        with tracker.paused():
            for old, new in zip(_tensors(kept), _tensors(fresh), strict=True):
                if new.untyped_storage().data_ptr() in inputs:
                    return fresh  # an output that is an input keeps its identity
                old.copy_(new)
        return kept


def wrap_in_hpu_graph(
    module: Any,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
    max_graphs: int | None = None,
) -> Any:
    """Replace `module.forward` by capture and replay; adds `clear_cache()` and `clear_inputs()`, returns `module`."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"wrap_in_hpu_graph needs a torch.nn.Module, got {type(module).__name__}")
    cache = GraphCache(module.forward, type(module).__name__, max_graphs)
    module.forward = functools.wraps(module.forward)(lambda *args, **kwargs: cache(*args, **kwargs))
    module.clear_cache = cache.outputs.clear
    module.clear_inputs = lambda: None  # inputs are never kept
    module.hpu_graph_cache = cache
    return module


def wrap_in_hpu_graph_func(
    func: Callable[..., Any],
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
    max_graphs: int | None = None,
) -> Callable[..., Any]:
    """As `wrap_in_hpu_graph`, for a plain function."""
    return GraphCache(func, getattr(func, "__name__", "function"), max_graphs)


class HPUGraph:
    """Explicit capture is not emulated; use `wrap_in_hpu_graph`."""

    def __init__(self) -> None:
        raise NotImplementedError("torch.hpu.HPUGraph (explicit capture) is not emulated: use wrap_in_hpu_graph")
