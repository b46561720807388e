# SPDX-License-Identifier: Apache-2.0
"""What the running forward is, for code that upstream gives no access to the runner.

One forward runs at a time, so the state is the process's. The model may change between two of them: the plug-in keeps
several in one worker and switches.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from vllm_gaudi.runtime import gates, settings


@dataclass
class ForwardState:
    """The current forward and the model's limits.

    Attributes:
        is_prompt: prefill rather than decode.
        graphs: the forward is captured into, or replayed from, an HPU graph.
        bounded: the host waits for earlier layers (ungraphed prefill of enough tokens).
        layer: decoder layers finished so far in this forward.
        kv_groups: KV-cache group of each layer, None when all are in one.
        owner: weak reference to the runner whose limits and groups these are.
    """

    is_prompt: bool = False
    graphs: bool = False
    bounded: bool = False
    layer: int = 0
    run_ahead_depth: int = 0
    decode_layers_per_graph: int = 1
    long_attention: bool = False
    events: list[Any] = field(default_factory=list)
    kv_groups: Any = None
    owner: weakref.ref | None = None


STATE = ForwardState()


def configure(vllm_config: Any) -> None:
    """Set the model's limits; called once the model is loaded."""
    STATE.run_ahead_depth = gates.run_ahead_depth(vllm_config)
    STATE.decode_layers_per_graph = gates.decode_layers_per_graph(vllm_config)
    STATE.long_attention = gates.long_attention(vllm_config)


def _take_over(runner: Any) -> None:
    """Make the limits and groups those of `runner`, if the last forward was another's."""
    if STATE.owner is None or STATE.owner() is not runner:
        configure(runner.vllm_config)
        STATE.kv_groups = runner.__dict__.get("_frontier_kv_groups")
        STATE.owner = weakref.ref(runner)


def note_forward(is_prompt: bool, tokens: int, graphs: bool, warmup: bool, runner: Any = None) -> None:
    """Start of a forward.

    Args:
        tokens: rows of the forward, padding included.
        warmup: nothing runs on the device (graphs are only compiled), so there is nothing to wait for.
        runner: whose forward it is; None leaves limits and groups as they are.
    """
    if runner is not None:
        _take_over(runner)
    STATE.is_prompt = bool(is_prompt)
    STATE.graphs = bool(graphs)
    STATE.layer = 0
    STATE.bounded = bool(
        STATE.run_ahead_depth
        and is_prompt
        and not graphs
        and not warmup
        and tokens >= settings.current().run_ahead_min_tokens
    )
