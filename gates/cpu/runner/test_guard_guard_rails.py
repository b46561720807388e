# SPDX-License-Identifier: Apache-2.0
"""Guard of the guard-rails patch: what is refused at start, and what the message says to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch


def _config(model_type: str = "beam", **changes: Any) -> Any:
    text = SimpleNamespace(
        model_type=model_type, sliding_window=512, layer_types=["sliding_attention", "full_attention"]
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=text,
            hf_text_config=text,
            dtype=torch.bfloat16,
            is_hybrid=False,
            max_model_len=262_144,
            get_num_attention_heads=lambda parallel: 6,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, pipeline_parallel_size=1, worker_cls="auto", distributed_executor_backend="uni"
        ),
        cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=None, user_specified_block_size=False),
        scheduler_config=SimpleNamespace(async_scheduling=True, scheduler_cls=None, max_num_batched_tokens=4096),
        speculative_config=None,
        kv_transfer_config=None,
    )
    for path, value in changes.items():
        holder, _, name = path.rpartition("__")
        setattr(getattr(config, holder) if holder else config, name, value)
    return config


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vllm-gaudi's user flags, all unset."""
    from vllm_gaudi.extension import runtime

    values = SimpleNamespace(
        VLLM_CONTIGUOUS_PA=None,
        VLLM_MERGED_PREFILL=None,
        VLLM_PROMPT_USE_FLEX_ATTENTION=None,
        VLLM_PROMPT_USE_FUSEDSDPA=None,
        PT_HPU_SDPA_QKV_SLICE_MODE_FWD=None,
        PT_HPU_SDPA_BC_FACTOR=None,
        VLLM_BUCKETING_STRATEGY=None,
        VLLM_HPU_FSDPA_SLICE_ENABLED=None,
    )
    monkeypatch.setattr(runtime, "get_config", lambda **k: values)
    return values


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"pipeline_parallel_size": 2}, "set --pipeline-parallel-size 1"),
        ({"data_parallel_size": 2}, "set --data-parallel-size 1"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "remove --speculative-config",
        ),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "remove --kv-transfer-config",
        ),
        ({"kv_offloading_size": 1.0}, "remove --kv-offloading-size"),
    ],
)
def test_refused_at_start(make_engine, settings, arguments: dict[str, Any], advice: str) -> None:
    """Through the platform's own hook, with vLLM's own configuration."""
    settings(LONG_ATTENTION="on")
    from vllm_gaudi.runtime.guard_rails import UnsupportedCombination

    with pytest.raises((UnsupportedCombination, ValueError), match=advice):
        make_engine(False, 64, **arguments)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"speculative_config": object()}, "remove --speculative-config"),
        ({"parallel_config__data_parallel_size": 2}, "set --data-parallel-size 1"),
        ({"parallel_config__pipeline_parallel_size": 2}, "set --pipeline-parallel-size 1"),
        ({"parallel_config__decode_context_parallel_size": 2}, "set --decode-context-parallel-size 1"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "--prefill-context-parallel-size 1"),
        ({"kv_transfer_config": object()}, "remove --kv-transfer-config"),
        ({"cache_config__kv_offloading_size": 1.0}, "remove --kv-offloading-size"),
        ({"model_config__runner_type": "pooling"}, "remove --runner pooling"),
        ({"cache_config__enable_prefix_caching": False}, "set VLLM_CONTIGUOUS_PA=false"),
    ],
)
def test_each_combination(flags, settings, changes: dict, advice: str) -> None:
    from vllm_gaudi.runtime import guard_rails

    settings()
    guard_rails.check(_config())
    with pytest.raises(guard_rails.UnsupportedCombination, match=advice):
        guard_rails.check(_config(**changes))
    guard_rails.check(_config("llama", **changes))


@pytest.mark.parametrize(
    ("flag", "value", "advice"),
    [
        ("VLLM_CONTIGUOUS_PA", True, "set VLLM_CONTIGUOUS_PA=false"),
        ("VLLM_MERGED_PREFILL", True, "unset VLLM_MERGED_PREFILL"),
        ("VLLM_PROMPT_USE_FLEX_ATTENTION", True, "unset VLLM_PROMPT_USE_FLEX_ATTENTION"),
        ("VLLM_PROMPT_USE_FUSEDSDPA", False, "unset VLLM_PROMPT_USE_FUSEDSDPA, or set .*LONG_ATTENTION=off"),
        ("VLLM_BUCKETING_STRATEGY", "pad", "set VLLM_HPU_FSDPA_SLICE_ENABLED=false"),
    ],
)
def test_each_flag(flags, settings, flag: str, value: Any, advice: str) -> None:
    from vllm_gaudi.runtime import guard_rails

    settings()
    setattr(flags, flag, value)
    with pytest.raises(guard_rails.UnsupportedCombination, match=advice):
        guard_rails.check(_config())
    guard_rails.check(_config("llama"))


def test_context_that_no_tile_can_hold_is_refused(flags, settings) -> None:
    """Not when a prompt gets that far, but at start, with a number that does."""
    from vllm_gaudi.runtime import guard_rails

    settings(ATTENTION_WORKSPACE_BYTES=str(2**24))
    with pytest.raises(
        guard_rails.UnsupportedCombination, match=r"262144 tokens under .*BYTES=16777216 .* (\d+)"
    ) as told:
        guard_rails.check(_config())
    guard_rails.check(_config("llama"))
    needed = int(str(told.value).split("more than ")[1].split(",")[0])
    for budget, refused in ((needed, True), (needed + 1, False)):
        settings(ATTENTION_WORKSPACE_BYTES=str(budget))
        if not refused:
            guard_rails.check(_config())
            continue
        with pytest.raises(guard_rails.UnsupportedCombination, match="lower --max-model-len"):
            guard_rails.check(_config())


def test_chunk_whose_window_bias_wraps_is_refused(flags, settings) -> None:
    """[32,384, 640 + 32,384] BF16 is below 2^31 bytes, [32,512, 640 + 32,512] above; FP32 halves both."""
    from vllm_gaudi.runtime import guard_rails

    def chunk(tokens: int, model_type: str = "beam", **changes: Any) -> Any:
        return _config(model_type, scheduler_config__max_num_batched_tokens=tokens, **changes)

    settings()
    guard_rails.check(chunk(32_384))
    guard_rails.check(chunk(262_144, "llama"))
    guard_rails.check(chunk(262_144, model_config__max_model_len=30_000))
    # No bucket is prepared for 32,000 tokens: they are padded to 32,768.
    padded = chunk(262_144, model_config__max_model_len=32_000)
    for config in (chunk(32_512), padded, chunk(32_384, model_config__dtype=torch.float32)):
        with pytest.raises(guard_rails.UnsupportedCombination, match="set --max-num-batched-tokens to 16384 or less"):
            guard_rails.check(config)
    flags.PT_HPU_SDPA_QKV_SLICE_MODE_FWD = True
    guard_rails.check(chunk(31_744))
    with pytest.raises(guard_rails.UnsupportedCombination, match="set --max-num-batched-tokens to 16384 or less"):
        guard_rails.check(chunk(32_384))


def test_blocks_upstream_cannot_count_need_arrays(flags, settings) -> None:
    from vllm_gaudi.runtime import guard_rails

    def chosen(size: int, model_type: str = "beam") -> Any:
        return _config(model_type, cache_config__block_size=size, cache_config__user_specified_block_size=True)

    settings(HOST_LISTS="off")
    guard_rails.check(chosen(256))
    guard_rails.check(chosen(512, "llama"))
    with pytest.raises(guard_rails.UnsupportedCombination, match=r"set --block-size 128, or .*HOST_LISTS=on"):
        guard_rails.check(chosen(512))
    settings(HOST_LISTS="on")
    guard_rails.check(chosen(512))


def test_blocks_upstream_cannot_count_with_contiguous_attention(flags, settings) -> None:
    """There the lists are upstream's whatever HOST_LISTS says."""
    from vllm_gaudi.runtime import guard_rails

    def chosen(size: int) -> Any:
        return _config("llama", cache_config__block_size=size, cache_config__user_specified_block_size=True)

    settings(PREFILL_SHARE="0.5")
    flags.VLLM_CONTIGUOUS_PA = True
    guard_rails.check(chosen(256))
    with pytest.raises(guard_rails.UnsupportedCombination, match="--block-size 128, or VLLM_CONTIGUOUS_PA=false"):
        guard_rails.check(chosen(512))
    flags.VLLM_CONTIGUOUS_PA = False
    guard_rails.check(chosen(512))


def test_flags_read_are_flags_of_the_plugin(flags) -> None:
    """A flag by a name that upstream does not know would read as unset for ever."""
    from vllm_gaudi.extension.features import get_features, get_user_flags

    known = {*get_user_flags(), *get_features()[1]}
    assert set(vars(flags)) <= known


def test_sync_runs_get_a_scheduler_that_keeps_the_share(flags, settings) -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_gaudi.runtime import guard_rails

    settings()
    config = _config(scheduler_config__async_scheduling=False)
    guard_rails.check(config)
    assert issubclass(resolve_obj_by_qualname(config.scheduler_config.scheduler_cls), Scheduler)
    for other in (_config(), _config("llama", scheduler_config__async_scheduling=False)):
        guard_rails.check(other)
        assert other.scheduler_config.scheduler_cls is None


def test_sync_runs_by_priority_get_a_scheduler_that_withdraws_blocks(flags, settings) -> None:
    from vllm_gaudi.runtime import guard_rails

    settings(PREFILL_SHARE="1")
    sync = {"scheduler_config__async_scheduling": False}
    chosen = {}
    for model_type, policy in (("beam", "priority"), ("beam", "fcfs"), ("llama", "priority")):
        config = _config(model_type, **sync, scheduler_config__policy=policy)
        guard_rails.check(config)
        chosen[model_type, policy] = config.scheduler_config.scheduler_cls
    assert chosen == {
        ("beam", "priority"): guard_rails.SYNC_SCHEDULER,
        ("beam", "fcfs"): None,
        ("llama", "priority"): None,
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_scheduler_that_drops_the_share_is_refused(flags, settings, asynchronous: bool) -> None:
    """One the user chose must be derived from the one that keeps it, or the share must be off."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_gaudi.runtime import guard_rails, sync_scheduler
    from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler

    def config(chosen: Any, model_type: str = "beam") -> Any:
        return _config(
            model_type, scheduler_config__async_scheduling=asynchronous, scheduler_config__scheduler_cls=chosen
        )

    class Chosen(HPUAsyncScheduler if asynchronous else sync_scheduler.PrefillShareScheduler):
        pass

    settings()
    plain = "vllm.v1.core.sched.scheduler.Scheduler"
    for chosen in (plain, Scheduler):
        with pytest.raises(guard_rails.UnsupportedCombination, match=rf"--scheduler-cls {plain} .*PREFILL_SHARE=1"):
            guard_rails.check(config(chosen))
        guard_rails.check(config(chosen, "llama"))
    for chosen in ("nowhere.Nothing", "vllm.v1.core.sched.scheduler.Missing", "plain"):
        with pytest.raises(guard_rails.UnsupportedCombination, match=rf"--scheduler-cls {chosen}, which cannot be imp"):
            guard_rails.check(config(chosen))
    for chosen in (Chosen, guard_rails.SYNC_SCHEDULER, "vllm.v1.core.sched.async_scheduler.AsyncScheduler"):
        kept = config(chosen)
        guard_rails.check(kept)
        assert kept.scheduler_config.scheduler_cls == chosen
    settings(PREFILL_SHARE="1")
    guard_rails.check(config(plain))


def test_windowed_kv_needs_exact_windows_the_hybrid_manager_and_plain_caches(flags, settings, monkeypatch) -> None:
    from vllm_gaudi.runtime import gates, guard_rails

    no_manager = {"scheduler_config__disable_hybrid_kv_cache_manager": True}
    settings(WINDOWED_KV="on", EXACT_WINDOW="off")
    with pytest.raises(guard_rails.UnsupportedCombination, match="set VLLM_GAUDI_FRONTIER_EXACT_WINDOW=on"):
        guard_rails.check(_config())
    settings(EXACT_WINDOW="auto")
    guard_rails.check(_config())
    with pytest.raises(guard_rails.UnsupportedCombination, match="remove --disable-hybrid-kv-cache-manager"):
        guard_rails.check(_config(**no_manager))
    settings(WINDOWED_KV="auto")
    guard_rails.check(_config(**no_manager))
    assert not gates.windowed_kv(_config(**no_manager))
    assert gates.windowed_kv(_config())
    monkeypatch.setenv("QUANT_CONFIG", "x.json")
    monkeypatch.setenv("VLLM_DYNAMIC_KV_QUANT", "1")
    guard_rails.check(_config(cache_config__cache_dtype="auto"))
    with pytest.raises(guard_rails.UnsupportedCombination, match="unset VLLM_DYNAMIC_KV_QUANT"):
        guard_rails.check(_config(cache_config__cache_dtype="fp8_inc"))
    settings(EXACT_WINDOW="off")
    assert not gates.windowed_kv(_config())


def test_windowed_kv_is_not_for_torch_compile(flags, settings, monkeypatch) -> None:
    import habana_frameworks.torch as htorch

    from vllm_gaudi.runtime import gates, guard_rails

    settings()
    monkeypatch.setattr(htorch.utils.internal, "is_lazy", lambda: False)
    guard_rails.check(_config())
    assert not gates.windowed_kv(_config())
    assert gates.windowed_kv(_config(model_config__enforce_eager=True))
    settings(WINDOWED_KV="on")
    with pytest.raises(guard_rails.UnsupportedCombination, match="set PT_HPU_LAZY_MODE=1"):
        guard_rails.check(_config())
