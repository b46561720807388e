# SPDX-License-Identifier: Apache-2.0
"""Dynamo backend `hpu_backend`: the traced graph runs as it is; each new graph counts as a compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gates.hpusim import metrics, probe, tracker


def hpu_backend(graph: torch.fx.GraphModule, example_inputs: list[Any], **_: Any) -> Callable[..., Any]:
    """Entry point of group `torch_dynamo_backends`."""
    with metrics.compilation(f"dynamo graph of {len(graph.graph.nodes)} nodes"):
        forward = graph.forward

    @torch.compiler.disable
    def run(*args: Any) -> Any:
        if probe.listeners:
            probe.emit("compiled_call")
        with tracker.compiled_graph():
            return forward(*args)

    return run
