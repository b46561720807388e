# SPDX-License-Identifier: Apache-2.0
"""Junk in the KV blocks nobody may read: the null block (id 0), the padding block (the last) and freed blocks.

Freed means: the scheduler of this process has freed a block no prefix-cache entry refers to, or evicted one. With the
scheduler in another process (more than one card) only null and padding blocks are known here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from typing import Any

import torch

from gates.hpusim import tracker
from gates.hpusim.faults import garbage
from gates.hpusim.faults.hooks import Undo

_RUNNER = "vllm_gaudi.v1.worker.hpu_model_runner"
_POOL = "vllm.v1.core.block_pool"
_freed: set[int] = set()
filled = 0  # blocks of single caches filled with junk so far, so that a test can tell that it happened


def _caches(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _caches(entry)


def poison(caches: Any, blocks: int, block_size: int, freed: set[int], value: float) -> None:
    """Fill block 0, block `blocks - 1` and `freed` of every cache with junk.

    Args:
        caches: nested lists of `[blocks * block_size, heads, head size]` tensors.
    """
    global filled
    with tracker.paused():
        for cache in _caches(caches):
            if cache.dim() < 2 or cache.shape[0] != blocks * block_size:
                continue
            paged = cache.unflatten(0, (blocks, block_size))
            for block in (0, blocks - 1, *sorted(freed)):
                garbage.fill(paged[block], value)
                filled += 1


def _wrap_runner(module: Any, undo: Undo, value: float) -> None:
    runner = module.HPUModelRunner
    original = runner.execute_model

    @functools.wraps(original)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        size = self.block_size
        tensors = list(_caches(self.kv_caches))
        if tensors and tensors[0].shape[0] % size == 0:
            poison(tensors, tensors[0].shape[0] // size, size, _freed, value)
            _freed.clear()
        return original(self, *args, **kwargs)

    undo.replace(runner, "execute_model", execute_model)


def _wrap_pool(module: Any, undo: Undo) -> None:
    pool = module.BlockPool
    free, evict = pool.free_blocks, pool._maybe_evict_cached_block

    @functools.wraps(free)
    def free_blocks(self: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        free(self, blocks)
        _freed.update(b.block_id for b in blocks if b.ref_cnt == 0 and b.block_hash is None and not b.is_null)

    @functools.wraps(evict)
    def maybe_evict(self: Any, block: Any) -> bool:
        evicted = evict(self, block)
        if evicted and block.ref_cnt == 0:
            _freed.add(block.block_id)
        return evicted

    undo.replace(pool, "free_blocks", free_blocks)
    undo.replace(pool, "_maybe_evict_cached_block", maybe_evict)


class _AfterImport(MetaPathFinder, Loader):
    """Runs a callback once a module has been imported."""

    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self.callbacks = callbacks
        self._loaders: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.callbacks or name in self._loaders:
            return None
        self._loaders[name] = None
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            del self._loaders[name]
            return None
        self._loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loaders[spec.name].create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loaders[module.__name__].exec_module(module)
        self.callbacks[module.__name__](module)


def start(undo: Undo, value: float) -> None:
    """Poison before every step of the plug-in's runner, whether it is imported already or later."""
    callbacks = {
        _RUNNER: lambda module: _wrap_runner(module, undo, value),
        _POOL: lambda module: _wrap_pool(module, undo),
    }
    later = {}
    for name, callback in callbacks.items():
        if name in sys.modules:
            callback(sys.modules[name])
        else:
            later[name] = callback
    if later:
        finder = _AfterImport(later)
        sys.meta_path.insert(0, finder)
        undo.then(lambda: sys.meta_path.remove(finder))
    undo.then(_freed.clear)
