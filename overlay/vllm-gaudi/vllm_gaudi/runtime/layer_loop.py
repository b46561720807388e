# SPDX-License-Identifier: Apache-2.0
"""What happens between two decoder layers: graph cuts and the bound on how far the host runs ahead.

Upstream cuts the lazy graph after every decoder layer. In decode a cut costs a launch and buys nothing inside a
captured graph; in an ungraphed prefill the host launches a layer several times faster than the device runs it,
so every queued layer holds its activations until it runs.

A model with its own layer loop calls `end_layer()` after each layer and needs no hook.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_gaudi.runtime.forward_state import STATE


def skip_cut() -> bool:
    """Whether the graph goes on after the layer that just ended.

    Only decode is affected. Hooks run while a graph is captured, so warm-up decides for every replay. Where every
    layer is cut, nothing is counted: torch.compile traces the hook, and a changing number is a recompilation.
    """
    if STATE.decode_layers_per_graph == 1:
        return False
    STATE.layer += 1
    return _inside_group()


def _inside_group() -> bool:
    if STATE.is_prompt or STATE.decode_layers_per_graph == 1:
        return False
    return STATE.decode_layers_per_graph == 0 or STATE.layer % STATE.decode_layers_per_graph != 0


def bound_run_ahead(layer: int) -> None:
    """Wait until at most `run_ahead_depth - 1` launched layers are unfinished; call after the layer's graph cut.

    Args:
        layer: 0-based index of the layer that was just launched.
    """
    if not STATE.bounded:
        return
    depth = STATE.run_ahead_depth
    while len(STATE.events) < depth:
        STATE.events.append(torch.hpu.Event())
    STATE.events[layer % depth].record()
    awaited = layer + 1 - depth
    if awaited >= 0:
        STATE.events[awaited % depth].synchronize()


def end_layer() -> None:
    """Graph cut and run-ahead bound after one decoder layer of a model that owns its layer loop."""
    import habana_frameworks.torch as htorch

    STATE.layer += 1
    if not _inside_group():
        htorch.core.mark_step()
    bound_run_ahead(STATE.layer - 1)


def install(model: torch.nn.Module, suffixes: list[str]) -> int:
    """Bound the run-ahead of a model whose layers upstream hooks by class name; returns the layers hooked.

    Must run after upstream's hooks are registered: an event recorded before the graph cut records nothing.
    """
    layers = []

    def collect(module: torch.nn.Module) -> None:
        for child in module.children():
            if child.__class__.__name__.endswith(tuple(suffixes)):
                layers.append(child)
            else:
                collect(child)

    collect(model)

    def hook(index: int) -> Any:
        def after(module: torch.nn.Module, args: Any, output: Any) -> None:
            bound_run_ahead(index)

        return after

    if STATE.run_ahead_depth:
        for index, layer in enumerate(layers):
            layer.register_forward_hook(hook(index))
    return len(layers) if STATE.run_ahead_depth else 0
