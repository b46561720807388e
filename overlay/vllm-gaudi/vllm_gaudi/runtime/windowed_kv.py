# SPDX-License-Identifier: Apache-2.0
"""KV cache in which a sliding-window layer keeps the blocks of its window and no others.

vLLM's hybrid KV-cache manager does the bookkeeping: layers of one kind form groups of equal size, each request has a
block table per group, and the i-th layers of all groups share one pair of key and value tensors. A block id belongs to
one group of one request at a time. Blocks that have left a window are freed by the scheduler and soon hold another
request's tokens, so nothing may read a table below the window: `windows` lists exactly what a query sees.

Here is what the runner needs at start; `window_groups` has what it needs in a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vllm_gaudi.extension.logger import logger as init_logger
from vllm_gaudi.runtime import gates, settings
from vllm_gaudi.runtime.forward_state import STATE

logger = init_logger()


class UnsupportedLayout(ValueError):
    """Layers or a cache that cannot be grouped by window; the message names them and the switch."""


@dataclass(frozen=True)
class Groups:
    """KV-cache groups of the loaded model.

    Attributes:
        full: id of the group whose layers see everything.
        sliding: ids of the groups of sliding layers.
        of_layer: layer name -> group id.
    """

    full: int
    sliding: tuple[int, ...]
    of_layer: dict[str, int]

    def __len__(self) -> int:
        return 1 + len(self.sliding)


def _off() -> str:
    return f"set {settings.variable('windowed_kv')}=off"


def layer_specs(runner: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """The runner's specs with a `SlidingWindowSpec` for every layer that has a window.

    Raises:
        UnsupportedLayout: a layer whose cache is no plain one, or whose window is not the model's.
    """
    if not gates.windowed_kv(runner.vllm_config):
        return specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    if runner.shared_kv_cache_layers:
        names = ", ".join(sorted(runner.shared_kv_cache_layers)[:3])
        raise UnsupportedLayout(f"windowed KV with layers that share another's cache ({names}): {_off()}")
    layers = runner.vllm_config.compilation_config.static_forward_context
    found = {}
    for name, spec in specs.items():
        if type(spec) is not FullAttentionSpec:
            raise UnsupportedLayout(f"windowed KV: layer {name} has a {type(spec).__name__}: {_off()}")
        window = layers[name].sliding_window
        if window is None:
            found[name] = spec
            continue
        if window != runner.sliding_window:
            raise UnsupportedLayout(
                f"windowed KV: layer {name} has a window of {window}, the model {runner.sliding_window}: {_off()}"
            )
        found[name] = SlidingWindowSpec(
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=spec.dtype,
            sliding_window=window,
        )
    return found


def group_layers(kv_cache_config: Any) -> Groups | None:
    """The groups core formed, None when all layers are in one.

    Raises:
        UnsupportedLayout: groups of other kinds, or more than one whose layers see everything.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    groups = kv_cache_config.kv_cache_groups
    kinds = [type(group.kv_cache_spec) for group in groups]
    if SlidingWindowSpec not in kinds:
        return None
    full = [g for g, kind in enumerate(kinds) if kind is FullAttentionSpec]
    sliding = tuple(g for g, kind in enumerate(kinds) if kind is SlidingWindowSpec)
    if len(full) != 1 or len(full) + len(sliding) != len(groups):
        found = ", ".join(f"{len(g.layer_names)} x {kind.__name__}" for g, kind in zip(groups, kinds, strict=True))
        raise UnsupportedLayout(f"windowed KV needs one group of full layers, found groups {found}: {_off()}")
    return Groups(full[0], sliding, {name: g for g, group in enumerate(groups) for name in group.layer_names})


def of(runner: Any) -> Groups | None:
    """The groups `runner` works with; None with a single group."""
    return runner.__dict__.get("_frontier_kv_groups")


def full_group(runner: Any) -> int | None:
    """Group whose table lists a request's whole context; None leaves the choice to upstream."""
    groups = of(runner)
    return None if groups is None else groups.full


def adopt(runner: Any, kv_cache_config: Any) -> Groups | None:
    """Make `runner` and its model work with the groups of `kv_cache_config`."""
    groups = group_layers(kv_cache_config)
    runner.__dict__["_frontier_kv_groups"] = STATE.kv_groups = groups
    regroup(runner)
    return groups


def regroup(runner: Any) -> None:
    """Give the runner's (empty) batch a block table per group, where it has one table alone.

    Called once the groups are known, and after upstream has replaced the batch for warm-up.
    """
    groups = of(runner)
    batch = runner.input_batch
    if groups is None or len(batch.block_table.block_tables) == len(groups):
        return
    from vllm.v1.worker.block_table import MultiGroupBlockTable

    size = runner.attn_block_size
    blocks = -(-max(runner.max_model_len, runner.max_encoder_len) // size)
    batch.block_table = MultiGroupBlockTable(
        max_num_reqs=batch.max_num_reqs,
        max_num_batched_tokens=runner.max_num_tokens,
        pin_memory=runner.pin_memory,
        device=runner.device,
        block_sizes=[size] * len(groups),
        kernel_block_sizes=[size] * len(groups),
        max_num_blocks=[blocks] * len(groups),
    )


def allocate(runner: Any, kv_cache_config: Any) -> tuple[dict[str, tuple], int]:
    """Key and value tensors by layer name, and the blocks of each; nothing with a single group.

    Each of core's tensors is one (key, value) pair, bound to all layers that share it, with a padding block at its end.

    Raises:
        UnsupportedLayout: layers of different shape share a tensor.
    """
    groups = adopt(runner, kv_cache_config)
    if groups is None:
        return {}, 0
    specs = {name: kv_cache_config.kv_cache_groups[g].kv_cache_spec for name, g in groups.of_layer.items()}
    caches: dict[str, tuple] = {}
    counts = set()
    for tensor in kv_cache_config.kv_cache_tensors:
        shapes = {(s.block_size, s.num_kv_heads, s.head_size, s.dtype) for s in (specs[n] for n in tensor.shared_by)}
        if len(shapes) != 1:
            raise UnsupportedLayout(f"windowed KV: layers {tensor.shared_by} differ in shape: {_off()}")
        block_size, heads, head_size, dtype = shapes.pop()
        blocks = tensor.size // specs[tensor.shared_by[0]].page_size_bytes
        counts.add(blocks)
        shape = runner.attn_backend.get_kv_cache_shape(blocks + 1, block_size, heads, head_size)
        key, value = (torch.zeros(shape, dtype=dtype, device=runner.device) for _ in range(2))
        for name in tensor.shared_by:
            caches[name] = (key, value, None, None)
    if len(counts) != 1 or min(counts) < kv_cache_config.num_blocks:
        raise UnsupportedLayout(f"windowed KV: tensors of {sorted(counts)} blocks, {kv_cache_config.num_blocks} needed")
    _log(kv_cache_config, groups)
    return caches, counts.pop()


def _log(kv_cache_config: Any, groups: Groups) -> None:
    sizes = [len(group.layer_names) for group in kv_cache_config.kv_cache_groups]
    spec = kv_cache_config.kv_cache_groups[groups.full].kv_cache_spec
    logger.info(
        "windowed KV: groups of %s layers, %d bytes a block id, %d bytes a token of context",
        "/".join(map(str, sizes)),
        len(kv_cache_config.kv_cache_tensors) * spec.page_size_bytes,
        sizes[groups.full] * spec.page_size_bytes // spec.block_size,
    )


def profiled_specs(specs: dict[str, Any]) -> dict[str, Any]:
    """Specs as upstream's memory profile knows them: a block of a sliding layer is as large as that of a full one."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    return {
        name: FullAttentionSpec(
            block_size=spec.block_size, num_kv_heads=spec.num_kv_heads, head_size=spec.head_size, dtype=spec.dtype
        )
        if isinstance(spec, SlidingWindowSpec)
        else spec
        for name, spec in specs.items()
    }


def padding_block_bytes(runner: Any, every_layer: int) -> int:
    """Bytes of the padding block: one block id, which is a page of as many layers as the largest group has.

    Args:
        every_layer: a page of every layer, which it is without groups.
    """
    if not gates.windowed_kv(runner.vllm_config):
        return every_layer
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    groups = get_kv_cache_groups(runner.vllm_config, runner.get_kv_cache_spec())
    return max(len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in groups)
