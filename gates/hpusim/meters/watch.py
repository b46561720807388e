# SPDX-License-Identifier: Apache-2.0
"""Tells the meter where the plug-in is: wraps the runner's entry points for watching, once their module is imported.

Watching changes no argument and no result. An entry point that a version of the plug-in lacks is listed in `missing`.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gates.hpusim import runtime
from gates.hpusim.meters.meter import Meter

RUNNER = "vllm_gaudi.v1.worker.hpu_model_runner"
CLASS = "HPUModelRunner"
PHASES = {"load_model": "load", "initialize_kv_cache": "kv_cache", "warmup_model": "warmup", "profile_run": "profile"}
missing: list[str] = []


def _phase(meter: Meter, original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter.thread = _thread()
        meter.stack.append(phase)
        try:
            return original(self, *args, **kwargs)
        finally:
            meter.stack.pop()
            if phase == "load":
                watch_layers(meter, getattr(self, "model", None))
            meter.warmed_up |= phase == "warmup"

    return call


def _thread() -> int:
    import threading

    return threading.get_ident()


def _step(meter: Meter, original: Callable[..., Any], first: bool, flush: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, argument: Any, *args: Any, **kwargs: Any) -> Any:
        if meter.stack:  # warm-up runs the same functions
            return original(self, argument, *args, **kwargs)
        start = time.perf_counter()
        meter.thread = _thread()
        if first:
            meter.begin_step()
        else:
            meter.step_grammar = argument is not None
        done = not first
        meter.in_step = True
        try:
            out = original(self, argument, *args, **kwargs)
            done = done or out is not None
            return out
        finally:
            meter.in_step = False
            meter.step_seconds += time.perf_counter() - start
            if done:
                meter.end_step()
                flush()

    return call


def _forward(meter: Meter, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, token_ids: Any, position_ids: Any, attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        if attn_metadata.is_prompt:
            meter.step_prompt = True
        else:
            meter.step_decode = True
        return original(self, token_ids, position_ids, attn_metadata, *args, **kwargs)

    return call


def watch_layers(meter: Meter, model: Any) -> None:
    """Name the layer being run: members of the module lists called `layers`. Not under torch.compile."""
    config = getattr(torch._dynamo.config, "disable", False)
    if not isinstance(model, torch.nn.Module) or not (runtime.is_lazy() or config):
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and name.rsplit(".", 1)[-1] == "layers":
            for index, layer in enumerate(module):
                layer.register_forward_pre_hook(lambda *_, key=str(index): setattr(meter, "layer", key))
                layer.register_forward_hook(lambda *_: setattr(meter, "layer", None))


def wrap(meter: Meter, runner: type, flush: Callable[[], None]) -> None:
    """Wrap the entry points of the runner class."""
    wrappers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        name: functools.partial(_phase, meter, phase=phase) for name, phase in PHASES.items()
    }
    wrappers["execute_model"] = functools.partial(_step, meter, first=True, flush=flush)
    wrappers["sample_tokens"] = functools.partial(_step, meter, first=False, flush=flush)
    wrappers["_execute_model_generic"] = functools.partial(_forward, meter)
    for name, wrapper in wrappers.items():
        original = getattr(runner, name, None)
        if original is None:
            missing.append(f"{CLASS}.{name}")
        else:
            setattr(runner, name, wrapper(original))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, meter: Meter, flush: Callable[[], None]) -> None:
        self.meter, self.flush = meter, flush

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != RUNNER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            wrap(self.meter, getattr(module, CLASS), self.flush)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(meter: Meter, flush: Callable[[], None]) -> None:
    if RUNNER in sys.modules:
        wrap(meter, getattr(sys.modules[RUNNER], CLASS), flush)
    else:
        sys.meta_path.insert(0, _Finder(meter, flush))
