# SPDX-License-Identifier: Apache-2.0
"""Which models a behaviour change of the runner applies to."""

from __future__ import annotations

from typing import Any

from vllm_gaudi.runtime import settings

FRONTIER_MODEL_TYPES = frozenset({"beam", "muse_spark", "muse_spark_text"})


def model_types(vllm_config: Any) -> set[str]:
    """`model_type` of the model's config and of its text config, as far as they exist."""
    model_config = getattr(vllm_config, "model_config", None)
    configs = (getattr(model_config, "hf_config", None), getattr(model_config, "hf_text_config", None))
    return {t for t in (getattr(c, "model_type", None) for c in configs) if isinstance(t, str)}


def is_frontier(vllm_config: Any) -> bool:
    """Whether the model is one this distribution adds."""
    return bool(model_types(vllm_config) & FRONTIER_MODEL_TYPES)


def _switched(switch: str, vllm_config: Any) -> bool:
    return switch == "on" or (switch == "auto" and is_frontier(vllm_config))


def exact_window(owner: Any) -> bool:
    """Whether `owner` (a runner or a metadata processor) uses exact windows; remembered on the owner.

    Only models whose layers mix window and full attention have a separate window path at all.
    """
    known = owner.__dict__.get("_frontier_exact_window")
    if known is None:
        known = bool(owner.interleaved_sliding_window) and _switched(settings.current().exact_window, owner.vllm_config)
        owner.__dict__["_frontier_exact_window"] = known
    return known


def interleaves_windows(vllm_config: Any) -> bool:
    """Whether some layers of the model have a window and others none."""
    text_config = getattr(vllm_config.model_config, "hf_text_config", None)
    kinds = getattr(text_config, "layer_types", None) or ()
    return len(set(kinds)) > 1 and bool(getattr(text_config, "sliding_window", None))


def has_exact_windows(vllm_config: Any) -> bool:
    return _switched(settings.current().exact_window, vllm_config) and interleaves_windows(vllm_config)


def compiled(vllm_config: Any) -> bool:
    """Whether layers run through torch.compile rather than in lazy or eager mode."""
    import habana_frameworks.torch as htorch

    return not htorch.utils.internal.is_lazy() and not getattr(vllm_config.model_config, "enforce_eager", False)


def windowed_kv(vllm_config: Any) -> bool:
    """Whether sliding layers keep the blocks of their window alone.

    Off where vLLM's hybrid manager is off; `auto` also where windows are not exact, and under torch.compile, where a
    layer that looks its metadata up by name is compiled apart from all others.
    """
    if getattr(vllm_config.scheduler_config, "disable_hybrid_kv_cache_manager", False):
        return False
    switch = settings.current().windowed_kv
    if switch == "auto" and (not has_exact_windows(vllm_config) or compiled(vllm_config)):
        return False
    return _switched(switch, vllm_config) and interleaves_windows(vllm_config)


def long_attention(vllm_config: Any) -> bool:
    return _switched(settings.current().long_attention, vllm_config)


def memory_margin(vllm_config: Any) -> bool:
    return _switched(settings.current().memory_margin_check, vllm_config)


def run_ahead_depth(vllm_config: Any) -> int:
    """Layers queued at most in an ungraphed prefill; 0 means unbounded."""
    depth = settings.current().run_ahead_depth
    if depth is None:
        return 2 if is_frontier(vllm_config) else 0
    return depth


def decode_layers_per_graph(vllm_config: Any) -> int:
    """Decoder layers between graph cuts in decode; 0 means no cut."""
    layers = settings.current().decode_layers_per_graph
    if layers is None:
        return 0 if is_frontier(vllm_config) else 1
    return layers


def prefill_share(vllm_config: Any) -> float:
    """Share of their solo speed that decodes keep; 1 leaves scheduling to upstream."""
    share = settings.current().prefill_share
    if share is None:
        return 0.75 if is_frontier(vllm_config) else 1.0
    return share
