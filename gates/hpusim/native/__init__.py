# SPDX-License-Identifier: Apache-2.0
"""The strict lane: a real torch device `hpu:0` in C++, for `HPUSIM_NATIVE=1`.

Device tensors say `device(type='hpu', index=0)` to torch itself, an operator given a host tensor beside device tensors
fails with its name and the argument's, and device memory is what the allocator holds. Every operator runs its CPU
kernel on the same memory, so both lanes compute the same numbers.

Not in this lane: per-operator meters and the fault models that listen to operators (their hooks are the pure lane's).
"""

from __future__ import annotations

from typing import Any

_module: Any = None


def extension() -> Any:
    """The compiled module; RuntimeError before `install()`."""
    if _module is None:
        raise RuntimeError("the native device is not installed: start the process with HPUSIM_NATIVE=1")
    return _module


def install() -> None:
    """Build the extension if this source and torch have not been built yet, load it, and count memory with it."""
    global _module
    if _module is not None:
        return
    import torch

    from gates.hpusim import memory
    from gates.hpusim.native import build
    from gates.hpusim.settings import settings

    _module = build.load()
    _module.set_limit(settings().memory_bytes)
    memory.count_with(_module)
    torch.Tensor.hpu = lambda self, device=None, non_blocking=False: self.to("hpu", non_blocking=non_blocking)
    torch.nn.Module.hpu = lambda self, device=None: self.to("hpu")
