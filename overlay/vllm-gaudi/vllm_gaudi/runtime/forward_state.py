# SPDX-License-Identifier: Apache-2.0
"""What the running forward is, for code that upstream gives no access to the runner.

One worker process runs one model, so the state is the process's.
"""

from __future__ import annotations

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


STATE = ForwardState()


def configure(vllm_config: Any) -> None:
    """Set the model's limits; called once the model is loaded."""
    STATE.run_ahead_depth = gates.run_ahead_depth(vllm_config)
    STATE.decode_layers_per_graph = gates.decode_layers_per_graph(vllm_config)
    STATE.long_attention = gates.long_attention(vllm_config)


def note_forward(is_prompt: bool, tokens: int, graphs: bool, warmup: bool) -> None:
    """Start of a forward.

    Args:
        tokens: rows of the forward, padding included.
        warmup: nothing runs on the device (graphs are only compiled), so there is nothing to wait for.
    """
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
