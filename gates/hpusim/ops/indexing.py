# SPDX-License-Identifier: Apache-2.0
"""Index semantics of the device: -1 pads token ids, slots, block lists and block groups, and CPU torch refuses it.

A negative row counts from the end, as in Python: -1 reads and writes the last row (the last KV block is the plug-in's
padding block). An index past the end stays torch's error, except a token id: `embedding` reads the last row for it.
`one_hot` of a negative class is a row of zeros. Host tensors keep torch's errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps

import torch
import torch.nn.functional as F

from gates.hpusim import tracker
from gates.hpusim.residency import alias, is_device
from gates.hpusim.settings import settings

# operator -> position of (dim, index) in a call whose first argument is the tensor indexed
_BY_DIM = ("index_select", "index_copy", "index_copy_", "index_add", "index_add_", "index_reduce", "index_reduce_")


def wrap_negative(index: torch.Tensor, size: int) -> torch.Tensor:
    """`index` with negative entries counted from the end of `size` rows."""
    if index.dtype not in (torch.int32, torch.int64):
        return index
    return torch.where(index < 0, index + size, index)


def _rewrite(rule: Callable[[torch.Tensor], torch.Tensor], index: torch.Tensor) -> torch.Tensor:
    """`rule(index)` in the index's place: the device's kernel reads padding as it is, so nobody sees it rewritten."""
    if torch.compiler.is_compiling():
        return rule(index)
    with tracker.inside_kernel():
        rewritten = rule(index)
    return alias(rewritten, index)


def _on_host(*tensors: torch.Tensor) -> bool:
    """True when every tensor is known to be the host's. A tracer's are not, nor is any while nothing is followed."""
    if torch.compiler.is_compiling() or not (settings().track or settings().native):
        return False
    return not any(is_device(tensor) for tensor in tensors)


def _by_dim(original: Callable) -> Callable:
    @wraps(original)
    def call(*args, **kwargs):
        names = ("input" if "input" in kwargs else "self", "dim", "index")
        values = dict(zip(names, args, strict=False)) | {k: kwargs[k] for k in names if k in kwargs}
        tensor, dim, index = (values.get(name) for name in names)
        if (
            isinstance(tensor, torch.Tensor)
            and isinstance(index, torch.Tensor)
            and isinstance(dim, int)
            and tensor.dim()
            and not _on_host(tensor, index)
        ):
            rows = tensor.shape[dim]
            index = _rewrite(lambda given: wrap_negative(given, rows), index)
            if "index" in kwargs:
                kwargs["index"] = index
            else:
                args = (*args[:2], index, *args[3:])
        return original(*args, **kwargs)

    return call


def _embedding(original: Callable) -> Callable:
    @wraps(original)
    def call(input, weight, *args, **kwargs):
        if _on_host(input, weight):
            return original(input, weight, *args, **kwargs)
        # Warm-up feeds ids 0..n-1 whatever the vocabulary: the device reads some row for those past the last.
        rows = weight.shape[0]
        input = _rewrite(lambda given: wrap_negative(given, rows).clamp(max=rows - 1), input)
        return original(input, weight, *args, **kwargs)

    return call


def _one_hot(original: Callable) -> Callable:
    def padded(tensor, num_classes):
        hot = original(tensor.clamp(min=0), num_classes)
        return hot.masked_fill_((tensor < 0).unsqueeze(-1), 0)

    @wraps(original)
    def call(tensor, num_classes=-1):
        if _on_host(tensor) or (num_classes < 0 and (torch.compiler.is_compiling() or not tensor.numel())):
            return original(tensor, num_classes)
        if torch.compiler.is_compiling():
            return padded(tensor, num_classes)
        if num_classes < 0:
            int(tensor.max())  # how many classes there are, the host must ask
        with tracker.inside_kernel():
            hot = original(tensor, num_classes) if num_classes < 0 else padded(tensor, num_classes)
        tracker.performed(torch.ops.aten.one_hot.default, (tensor, num_classes), hot)
        return hot

    return call


@cache
def install() -> None:
    """Give torch's index functions the device's padding semantics; idempotent."""
    for name in _BY_DIM:
        setattr(torch.Tensor, name, _by_dim(getattr(torch.Tensor, name)))
        if hasattr(torch, name):
            setattr(torch, name, _by_dim(getattr(torch, name)))
    F.embedding = _embedding(F.embedding)
    F.one_hot = _one_hot(F.one_hot)
    torch.nn.functional.one_hot = F.one_hot
