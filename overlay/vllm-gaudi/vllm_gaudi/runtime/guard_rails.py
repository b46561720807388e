# SPDX-License-Identifier: Apache-2.0
"""Combinations the runner patches do not support, refused at start with the setting to change.

Checked only for what is switched on: a model without the patches' behaviour is configured as upstream allows.
"""

from __future__ import annotations

import os
from typing import Any

from vllm_gaudi.runtime import gates, long_attention, settings, windows
from vllm_gaudi.runtime.host_lists import EXACT_IN_BFLOAT16

SYNC_SCHEDULER = "vllm_gaudi.runtime.sync_scheduler.PrefillShareScheduler"


class UnsupportedCombination(ValueError):
    """A configuration the patches would serve wrongly; the message says what to change."""


def _dynamic_scales(vllm_config: Any) -> bool:
    """Whether upstream keeps scales beside an FP8 cache, which tensors that layers share have no place for."""
    quantised = os.environ.get("QUANT_CONFIG") is not None and os.environ.get("VLLM_DYNAMIC_KV_QUANT") is not None
    return quantised and str(vllm_config.cache_config.cache_dtype).startswith("fp8")


def _name(scheduler_cls: Any) -> str:
    return scheduler_cls if isinstance(scheduler_cls, str) else f"{scheduler_cls.__module__}.{scheduler_cls.__name__}"


def _share_problem(scheduler_cls: Any) -> tuple[str, str] | None:
    """Why a scheduler the user chose does not go with the prefill share: it must derive from one that keeps it."""
    from vllm.utils.import_utils import resolve_obj_by_qualname

    # Puts the plug-in's scheduler in the place of vLLM's: a class derived from that one keeps the share too.
    import vllm_gaudi.utils  # noqa: F401
    from vllm_gaudi.runtime.sync_scheduler import PrefillShareScheduler
    from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler

    what = f"the prefill share with --scheduler-cls {_name(scheduler_cls)}"
    try:
        found = resolve_obj_by_qualname(scheduler_cls) if isinstance(scheduler_cls, str) else scheduler_cls
    except (ImportError, AttributeError, ValueError) as error:
        return f"{what}, which cannot be imported ({error}),", "correct the name, or remove it"
    if isinstance(found, type) and issubclass(found, PrefillShareScheduler | HPUAsyncScheduler):
        return None
    return what, f"remove it, derive it from {SYNC_SCHEDULER}, or set {settings.variable('prefill_share')}=1"


def _block_size(vllm_config: Any) -> int:
    """The block size the user chose; the platform puts its own in the place of none after this check."""
    cache = vllm_config.cache_config
    return cache.block_size if cache.user_specified_block_size else 128


def _row_over_the_budget(vllm_config: Any) -> int:
    """Workspace bytes of one query row over the longest context, if the budget does not hold it; else 0.

    Keys are those of the context, in whole blocks, and of the chunk padded to its bucket.
    """
    model = vllm_config.model_config
    keys = model.max_model_len + _block_size(vllm_config) + vllm_config.scheduler_config.max_num_batched_tokens
    heads = model.get_num_attention_heads(vllm_config.parallel_config)
    needed = long_attention.workspace_bytes(heads, 1, keys)
    return needed if needed >= settings.current().attention_workspace_bytes else 0


def _longest_chunk(vllm_config: Any, flags: Any) -> int:
    """Query rows of the largest prefill forward: a prompt that no prepared bucket holds is padded to one of its own."""
    from vllm_gaudi.extension.bucketing.common import calc_fallback_value

    budget = vllm_config.scheduler_config.max_num_batched_tokens
    rows = min(calc_fallback_value(vllm_config.model_config.max_model_len, 32), budget)
    if flags.PT_HPU_SDPA_QKV_SLICE_MODE_FWD:
        size = flags.PT_HPU_SDPA_BC_FACTOR or 1024
        rows = max(rows, -(-min(vllm_config.model_config.max_model_len, budget) // size) * size)
    return rows


def _window_plane(vllm_config: Any, flags: Any) -> int:
    """Bytes of the bias [chunk, window list + chunk] that a sliding layer builds for the largest prefill chunk.

    Unlike a full layer's it is never built in tiles: a window list is short, so only a huge chunk makes it too large.
    """
    model = vllm_config.model_config
    chunk = _longest_chunk(vllm_config, flags)
    block_size = _block_size(vllm_config)
    listed = windows.width(model.hf_text_config.sliding_window, block_size) * block_size
    return chunk * (listed + chunk) * model.dtype.itemsize


def _problems(vllm_config: Any, flags: Any) -> list[tuple[str, str]]:
    """(what is not supported, what to change) for everything that is switched on.

    Args:
        flags: vllm-gaudi's configuration. Only its user flags are read: derived features are computed once and
            would be fixed before the runner has set what they depend on.
    """
    parallel = vllm_config.parallel_config
    contiguous = flags.VLLM_CONTIGUOUS_PA
    if contiguous is None:
        contiguous = not vllm_config.cache_config.enable_prefix_caching
    found = []
    exact = gates.has_exact_windows(vllm_config)
    tiles = gates.long_attention(vllm_config)
    share = gates.prefill_share(vllm_config) < 1
    if exact or tiles or share:
        what = "exact sliding windows" if exact else "tiled attention" if tiles else "the prefill share"
        if vllm_config.speculative_config is not None:
            found.append((f"{what} with speculative decoding", "remove --speculative-config"))
        if parallel.data_parallel_size > 1:
            found.append((f"{what} with data parallelism", "set --data-parallel-size 1 (one server per replica)"))
        if parallel.pipeline_parallel_size > 1:
            found.append((f"{what} with pipeline parallelism", "set --pipeline-parallel-size 1"))
        sizes = (getattr(parallel, f"{kind}_context_parallel_size", 1) for kind in ("decode", "prefill"))
        if max(sizes) > 1:
            advice = "set --decode-context-parallel-size 1 and --prefill-context-parallel-size 1"
            found.append((f"{what} with context parallelism", advice))
        if getattr(vllm_config, "kv_transfer_config", None) is not None:
            found.append((f"{what} with a KV connector", "remove --kv-transfer-config"))
        # vLLM makes a connector of this one after the platform's check.
        if getattr(vllm_config.cache_config, "kv_offloading_size", None) is not None:
            found.append((f"{what} with KV offloading", "remove --kv-offloading-size"))
    chosen = vllm_config.scheduler_config.scheduler_cls if share else None
    if chosen is not None and (problem := _share_problem(chosen)):
        found.append(problem)
    if exact and contiguous:
        found.append(("window block lists with contiguous paged attention", "set VLLM_CONTIGUOUS_PA=false"))
    if gates.windowed_kv(vllm_config):
        if not exact:
            found.append(("windowed KV without exact windows", f"set {settings.variable('exact_window')}=on"))
        if gates.compiled(vllm_config):
            found.append(("windowed KV under torch.compile", "set PT_HPU_LAZY_MODE=1"))
        if _dynamic_scales(vllm_config):
            found.append(("windowed KV with dynamic FP8 scales", "unset VLLM_DYNAMIC_KV_QUANT"))
    elif settings.current().windowed_kv == "on" and gates.interleaves_windows(vllm_config):
        found.append(("windowed KV without the hybrid manager", "remove --disable-hybrid-kv-cache-manager"))
    if (exact or tiles) and flags.VLLM_MERGED_PREFILL:
        found.append(("merged prefill", "unset VLLM_MERGED_PREFILL"))
    if (exact or tiles) and getattr(vllm_config.model_config, "runner_type", "generate") == "pooling":
        # Pooling makes metadata of its own, without window lists and biases.
        found.append(("pooling", "remove --runner pooling"))
    if (exact or tiles) and flags.VLLM_PROMPT_USE_FLEX_ATTENTION:
        # It masks by the position in the chunk alone, and takes no bias.
        found.append(("flex attention", "unset VLLM_PROMPT_USE_FLEX_ATTENTION"))
    if tiles and flags.VLLM_PROMPT_USE_FUSEDSDPA is False:
        advice = f"unset VLLM_PROMPT_USE_FUSEDSDPA, or set {settings.variable('long_attention')}=off"
        found.append(("tiled attention without FusedSDPA", advice))
    if exact or tiles or share:
        lists_off = settings.current().host_lists == "off"
        if (lists_off or contiguous) and _block_size(vllm_config) > EXACT_IN_BFLOAT16:
            arrays = "VLLM_CONTIGUOUS_PA=false" if contiguous else f"{settings.variable('host_lists')}=on"
            what = f"upstream's block lists with blocks of more than {EXACT_IN_BFLOAT16} tokens"
            found.append((what, f"set --block-size 128, or {arrays}"))
    if tiles and (needed := _row_over_the_budget(vllm_config)):
        budget = f"{settings.variable('attention_workspace_bytes')}={settings.current().attention_workspace_bytes}"
        advice = f"set more than {needed}, or lower --max-model-len"
        found.append((f"a context of {vllm_config.model_config.max_model_len} tokens under {budget}", advice))
    if tiles and flags.VLLM_BUCKETING_STRATEGY == "pad" and flags.VLLM_HPU_FSDPA_SLICE_ENABLED is not False:
        found.append(("tiled attention with upstream's key slicing", "set VLLM_HPU_FSDPA_SLICE_ENABLED=false"))
    if (exact or tiles) and gates.interleaves_windows(vllm_config):
        plane, limit = _window_plane(vllm_config, flags), long_attention.BIAS_PLANE_LIMIT
        if plane >= limit:
            what = (
                f"a prefill chunk whose sliding layers need a bias of {plane} bytes (the kernel reads {limit} wrongly)"
            )
            found.append((what, "set --max-num-batched-tokens to 16384 or less"))
    return found


def check(vllm_config: Any) -> None:
    """Refuse unsupported combinations, and choose the scheduler a sync run needs.

    It keeps the prefill share, and by priority leaves no block in the prefix cache that was never computed.

    Raises:
        UnsupportedCombination: names every unsupported combination and the setting to change.
        settings.SettingError: a setting has a value that is not accepted.
    """
    settings.current()
    if vllm_config.model_config is None:
        return
    from vllm_gaudi.extension.runtime import get_config

    problems = _problems(vllm_config, get_config())
    if problems:
        lines = "; ".join(f"{what} is not supported: {change}" for what, change in problems)
        raise UnsupportedCombination(lines)
    scheduler = vllm_config.scheduler_config
    by_priority = gates.is_frontier(vllm_config) and getattr(scheduler, "policy", "fcfs") == "priority"
    needed = by_priority or gates.prefill_share(vllm_config) < 1
    if needed and not scheduler.async_scheduling and scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = SYNC_SCHEDULER
