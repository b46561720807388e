# SPDX-License-Identifier: Apache-2.0
"""Check at start that the memory left beside weights and KV cache holds a prefill chunk.

Upstream sizes the KV cache from the memory free after the weights are loaded and profiles no forward, so what a
prefill needs comes out of the margin that gpu_memory_utilization leaves. The estimate is a lower bound; the
margin of a served configuration is found by measurement.
"""

from __future__ import annotations

import math
from typing import Any

from vllm_gaudi.runtime import gates, long_attention, settings

_ACTIVATIONS_PER_LAYER = 8  # hidden-sized tensors alive inside one decoder layer


def prefill_bytes(vllm_config: Any) -> int:
    """Lower bound in bytes of what one prefill chunk holds beside weights and KV cache.

    Attention workspace (at most the budget), the bias of a tile, and the activations of the layers that may be
    in flight: queued layers x chunk x hidden x element size x 8.
    """
    model = vllm_config.model_config
    chunk = vllm_config.scheduler_config.max_num_batched_tokens
    chunk = min(chunk, model.max_model_len)
    heads = model.get_num_attention_heads(vllm_config.parallel_config)
    itemsize = model.dtype.itemsize
    current = settings.current()
    whole = long_attention.workspace_bytes(heads, chunk, model.max_model_len)
    workspace = min(whole, current.attention_workspace_bytes)
    keys = min(model.max_model_len, current.compact_bias_keys)
    bias = chunk * keys * itemsize
    layers = gates.run_ahead_depth(vllm_config) or 1
    activations = layers * chunk * model.get_hidden_size() * itemsize * _ACTIVATIONS_PER_LAYER
    return workspace + bias + activations


def check(vllm_config: Any, free: float, utilization: float) -> None:
    """Refuse a memory plan whose margin is below the estimate.

    Args:
        free: bytes free on the device once the weights are loaded.
        utilization: share of them that KV cache and graphs get.

    Raises:
        ValueError: names the margin, the estimate and the utilization that leaves enough.
    """
    if not gates.memory_margin(vllm_config):
        return
    needed, margin = prefill_bytes(vllm_config), free * (1 - utilization)
    if margin >= needed:
        return
    # Rounded down: the advice must pass this very check.
    fitting = math.floor((1 - needed / free) * 100) / 100 if free > 0 else 0.0
    advice = (
        f"set --gpu-memory-utilization to at most {fitting:.2f}"
        if fitting > 0.05
        else "lower --max-num-batched-tokens or " + settings.variable("attention_workspace_bytes")
    )
    raise ValueError(
        f"--gpu-memory-utilization {utilization} leaves {margin / 2**30:.2f} GiB beside weights, KV cache "
        f"and graphs, but a prefill chunk needs at least {needed / 2**30:.2f} GiB: {advice} "
        f"(or {settings.variable('memory_margin_check')}=off)"
    )
