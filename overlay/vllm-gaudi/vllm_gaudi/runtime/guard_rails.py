# SPDX-License-Identifier: Apache-2.0
"""Combinations the runner patches do not support, refused at start with the setting to change.

Checked only for what is switched on: a model without the patches' behaviour is configured as upstream allows.
"""

from __future__ import annotations

from typing import Any

from vllm_gaudi.runtime import gates, settings

SYNC_SCHEDULER = "vllm_gaudi.runtime.sync_scheduler.PrefillShareScheduler"


class UnsupportedCombination(ValueError):
    """A configuration the patches would serve wrongly; the message says what to change."""


def _has_exact_windows(vllm_config: Any) -> bool:
    switch = settings.current().exact_window
    if not (switch == "on" or (switch == "auto" and gates.is_frontier(vllm_config))):
        return False
    text_config = getattr(vllm_config.model_config, "hf_text_config", None)
    kinds = getattr(text_config, "layer_types", None) or ()
    return len(set(kinds)) > 1 and bool(getattr(text_config, "sliding_window", None))


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
    windows = _has_exact_windows(vllm_config)
    tiles = gates.long_attention(vllm_config)
    share = gates.prefill_share(vllm_config) < 1
    if windows or tiles or share:
        what = "exact sliding windows" if windows else "tiled attention" if tiles else "the prefill share"
        if vllm_config.speculative_config is not None:
            found.append((f"{what} with speculative decoding", "remove --speculative-config"))
        if parallel.data_parallel_size > 1:
            found.append((f"{what} with data parallelism", "set --data-parallel-size 1 (one server per replica)"))
        if parallel.pipeline_parallel_size > 1:
            found.append((f"{what} with pipeline parallelism", "set --pipeline-parallel-size 1"))
        if getattr(vllm_config, "kv_transfer_config", None) is not None:
            found.append((f"{what} with a KV connector", "remove --kv-transfer-config"))
    if windows and contiguous:
        found.append(("window block lists with contiguous paged attention", "set VLLM_CONTIGUOUS_PA=false"))
    if (windows or tiles) and flags.VLLM_MERGED_PREFILL:
        found.append(("merged prefill", "unset VLLM_MERGED_PREFILL"))
    if tiles and flags.VLLM_BUCKETING_STRATEGY == "pad" and flags.VLLM_HPU_FSDPA_SLICE_ENABLED is not False:
        found.append(("tiled attention with upstream's key slicing", "set VLLM_HPU_FSDPA_SLICE_ENABLED=false"))
    return found


def check(vllm_config: Any) -> None:
    """Refuse unsupported combinations, and choose the scheduler a sync run needs for the prefill share.

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
    if gates.prefill_share(vllm_config) < 1 and not scheduler.async_scheduling and scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = SYNC_SCHEDULER
