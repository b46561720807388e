# SPDX-License-Identifier: Apache-2.0
"""Guard of the memory-margin patch: a plan whose margin cannot hold a prefill is refused before it serves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

GIB = 2**30


def _worker(utilization: float, model_type: str = "beam") -> SimpleNamespace:
    model = SimpleNamespace(
        hf_config=SimpleNamespace(model_type=model_type),
        hf_text_config=None,
        use_mla=False,
        enforce_eager=True,
        dtype=torch.bfloat16,
        max_model_len=262144,
        get_num_attention_heads=lambda parallel: 6,
        get_hidden_size=lambda: 6144,
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=None,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=4096),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    runner = SimpleNamespace(vllm_config=config, get_kv_cache_spec=dict, profile_run=lambda **k: None, mem_margin=None)
    return SimpleNamespace(
        model_runner=runner,
        model_config=model,
        vllm_config=config,
        cache_config=SimpleNamespace(gpu_memory_utilization=utilization),
    )


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch):
    from vllm_gaudi.v1.worker import hpu_worker

    monkeypatch.setattr(torch.hpu, "mem_get_info", lambda *a: (24 * GIB, 96 * GIB))
    monkeypatch.setattr(hpu_worker, "bind_kv_cache", lambda *a, **k: None)
    return hpu_worker.HPUWorker.determine_available_memory


def test_small_margin_is_refused(measure, settings) -> None:
    settings()
    with pytest.raises(ValueError, match=r"--gpu-memory-utilization to at most 0\.8"):
        measure(_worker(0.99))
    assert measure(_worker(0.8)) > 0
    assert measure(_worker(0.99, "llama")) > 0, "other models are served as before"
    settings(MEMORY_MARGIN_CHECK="off")
    assert measure(_worker(0.99)) > 0


def test_advice_passes_the_check(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    from vllm_gaudi.runtime import memory_margin

    settings()
    config = _worker(0.99).vllm_config
    for needed in range(1, 90):
        monkeypatch.setattr(memory_margin, "prefill_bytes", lambda _, needed=needed: needed * GIB / 100 + 3)
        with pytest.raises(ValueError, match="at most") as refusal:
            memory_margin.check(config, GIB, 1.0)
        memory_margin.check(config, GIB, float(re.search(r"at most ([\d.]+)", str(refusal.value))[1]))


def test_no_memory_left_is_refused_as_such(settings) -> None:
    from vllm_gaudi.runtime import memory_margin

    settings()
    with pytest.raises(ValueError, match=r"leaves 0\.00 GiB"):
        memory_margin.check(_worker(0.9).vllm_config, 0, 0.9)


def test_estimate_follows_the_settings(settings) -> None:
    from vllm_gaudi.runtime.memory_margin import prefill_bytes

    config = _worker(0.9).vllm_config
    settings()
    bias, activations = 4096 * 65536 * 2, 2 * 4096 * 6144 * 2 * 8
    assert prefill_bytes(config) == 2 * GIB + bias + activations
    settings(ATTENTION_WORKSPACE_BYTES=str(GIB), RUN_AHEAD_DEPTH="1")
    assert prefill_bytes(config) == GIB + bias + activations // 2
    settings(ATTENTION_WORKSPACE_BYTES="1048576")
    from vllm_gaudi.runtime import memory_margin

    with pytest.raises(ValueError, match="lower --max-num-batched-tokens"):
        memory_margin.check(config, 0.9 * GIB, 0.9)
