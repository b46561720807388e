# SPDX-License-Identifier: Apache-2.0
"""KV groups, bytes a block id and bytes a token of both published models, through the runner's specs and core."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

MIB = 1 << 20
CARDS = 8


def _muse() -> tuple[list[int | None], int, int]:
    from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig

    config = MuseSparkTextConfig()
    windows = [config.window(i) for i in range(config.num_hidden_layers)]
    return windows, config.num_key_value_heads // CARDS, config.head_dim


def _beam() -> tuple[list[int | None], int, int]:
    from vllm_gaudi.models.beam.config import BeamConfig

    config = BeamConfig()
    windows = [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]
    return windows, config.num_key_value_heads // CARDS, config.head_dim


def _core(windows, heads, head_size, memory: int):
    """Core's KVCacheConfig for the specs the runner gives it, for `memory` bytes."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from vllm_gaudi.runtime import windowed_kv

    layers = {str(i): SimpleNamespace(sliding_window=window) for i, window in enumerate(windows)}
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(model_type="beam"),
            hf_text_config=SimpleNamespace(
                model_type="beam", layer_types=["sliding_attention", "full_attention"], sliding_window=1
            ),
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        kv_transfer_config=None,
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )
    window = next(w for w in windows if w is not None)
    runner = SimpleNamespace(vllm_config=config, shared_kv_cache_layers={}, sliding_window=window)
    full = FullAttentionSpec(block_size=128, num_kv_heads=heads, head_size=head_size, dtype=torch.bfloat16)
    specs = windowed_kv.layer_specs(runner, {name: full for name in layers})
    groups = get_kv_cache_groups(config, specs)
    return get_kv_cache_config_from_groups(config, groups, memory), windowed_kv.profiled_specs(specs)


def test_muse_groups_and_bytes() -> None:
    windows, heads, head_size = _muse()
    core, profiled = _core(windows, heads, head_size, 20 << 30)
    layers = [sorted(map(int, group.layer_names)) for group in core.kv_cache_groups]
    assert layers == [list(range(0, 61, 4)), list(range(2, 59, 4)), list(range(3, 60, 4)), list(range(1, 62, 4))]
    assert [len(group) for group in layers] == [16, 15, 15, 16]
    assert len(core.kv_cache_tensors) == 16
    assert core.kv_cache_tensors[0].shared_by == ["0", "2", "3", "1"]
    assert sorted(map(int, core.kv_cache_tensors[15].shared_by)) == [60, 61]
    page = core.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    assert 16 * page == 1 * MIB
    assert core.num_blocks == 20 * 1024
    assert 16 * page // 128 == 8192
    assert {spec.page_size_bytes for spec in profiled.values()} == {page}
    assert 62 * page // 128 == 31_744
    assert 31_744 / 8192 == 3.875


def test_beam_groups_and_bytes() -> None:
    windows, heads, head_size = _beam()
    core, _ = _core(windows, heads, head_size, 20 << 30)
    assert sum(w is not None for w in windows) == 43
    assert [len(group.layer_names) for group in core.kv_cache_groups] == [9, 9, 9, 8, 8, 9]
    page = core.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    assert 9 * page == 576 * 1024
    assert 9 * page // 128 == 4608
    assert 52 * page // 128 == 26_624
    assert core.num_blocks == (20 << 30) // (9 * page)


@pytest.mark.parametrize(
    ("model", "groups", "block", "token", "full_length", "live", "async_chunk"),
    [
        (_muse, [16, 15, 15, 16], MIB, 8192, 31_744, 17, 81),
        (_beam, [9, 9, 9, 8, 8, 9], 9 << 16, 4608, 26_624, 5, 69),
    ],
    ids=["muse", "beam"],
)
def test_figures_are_core_s(model, groups, block, token, full_length, live, async_chunk) -> None:
    from vllm_gaudi.runtime import windows as exact
    from vllm_gaudi.runtime.kv_figures import figures

    windows, heads, head_size = model()
    found = figures(windows, heads, head_size)
    core, _ = _core(windows, heads, head_size, 1 << 30)
    assert [list(map(int, group.layer_names)) for group in core.kv_cache_groups] == [list(g) for g in found.groups]
    assert [len(group) for group in found.groups] == groups
    assert (found.block_bytes, found.token_bytes, found.full_length_token_bytes) == (block, token, full_length)
    assert exact.width(found.window, 128) == live
    assert found.sliding_blocks(2 * 4096, 1 << 20) == async_chunk
    length = 256 * 1024
    print(
        f"{len(windows)} layers: {found.full_length_token_bytes} -> {found.token_bytes} bytes a token, "
        f"{found.full_length_token_bytes / found.token_bytes:.3f} times the tokens; a request of 256K tokens "
        f"{length * found.full_length_token_bytes / 2**30:.2f} -> {found.request_bytes(length, 1) / 2**30:.2f} GiB"
    )
    assert found.request_bytes(length, 1) < length * found.full_length_token_bytes / 3


def test_a_model_without_both_kinds_has_no_figures() -> None:
    from vllm_gaudi.runtime.kv_figures import figures

    for windows in ([None, None], [8, 16, None], [8, 8]):
        with pytest.raises(ValueError, match="one window beside full layers"):
            figures(windows, 1, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 7}, "layer 0 has a window of 8, the model 7"),
        ({"shared_kv_cache_layers": {"1": "0"}}, r"layers that share another's cache \(1\).*WINDOWED_KV=off"),
    ],
)
def test_layers_that_cannot_be_grouped_are_refused(change, message) -> None:
    from vllm_gaudi.runtime import windowed_kv

    runner = _runner_of([8, None], **change)
    with pytest.raises(ValueError, match=message):
        windowed_kv.layer_specs(*runner)


def test_switched_off_every_layer_keeps_its_context(settings) -> None:
    from vllm_gaudi.runtime import windowed_kv

    runner, specs = _runner_of([8, None])
    assert windowed_kv.layer_specs(runner, specs) != specs
    settings(WINDOWED_KV="off")
    assert windowed_kv.layer_specs(runner, specs) is specs
    settings(WINDOWED_KV="on")
    runner.vllm_config.scheduler_config.disable_hybrid_kv_cache_manager = True
    assert windowed_kv.layer_specs(runner, specs) is specs


def _runner_of(windows, **change):
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    layers = {str(i): SimpleNamespace(sliding_window=window) for i, window in enumerate(windows)}
    text = SimpleNamespace(model_type="beam", layer_types=["sliding_attention", "full_attention"], sliding_window=8)
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=text, hf_text_config=text),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )
    values = {"vllm_config": config, "shared_kv_cache_layers": {}, "sliding_window": 8, **change}
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
    return SimpleNamespace(**values), {name: spec for name in layers}
