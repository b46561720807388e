# SPDX-License-Identifier: Apache-2.0
"""Which tensors live on the device, in the lane where every tensor is a CPU tensor.

A storage on the device carries a `Block` (its memory booking) as an attribute: torch keeps a storage's Python object
alive with the storage, so views share the mark and it vanishes with the last view. Pinned host storages are marked too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gates.hpusim.memory import Block

_ATTRIBUTE = "_hpusim_block"
_PINNED = "_hpusim_pinned"
_ALIAS = object()  # the mark of a stand-in for a device tensor: lives there, books nothing


class _State(threading.local):
    unbooked = 0


_state = _State()


@contextmanager
def unbooked() -> Iterator[None]:
    """What this thread makes inside is no device tensor, whatever device it names."""
    _state.unbooked += 1
    try:
        yield
    finally:
        _state.unbooked -= 1


def _storage(tensor: torch.Tensor) -> Any | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, functional or freed: no storage of its own
        return None


def is_device(tensor: torch.Tensor) -> bool:
    """True when `tensor` lives on the emulated device."""
    storage = _storage(tensor)
    if storage is None:
        return False
    return storage.device.type == "hpu" or getattr(storage, _ATTRIBUTE, None) is not None


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the storage of `tensor` as device memory, book its bytes, return `tensor`."""
    if _state.unbooked:
        return tensor
    storage = _storage(tensor)
    if storage is not None and storage.device.type == "cpu" and getattr(storage, _ATTRIBUTE, None) is None:
        setattr(storage, _ATTRIBUTE, Block(storage.nbytes()))
    return tensor


def rebook(tensor: torch.Tensor) -> None:
    """Book what an operator made of the storage it was given: `resize_` and `out=` may have grown it."""
    storage = _storage(tensor)
    block = None if storage is None else getattr(storage, _ATTRIBUTE, None)
    if isinstance(block, Block) and block.nbytes != storage.nbytes():
        block.resize(storage.nbytes())


def alias(tensor: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Let `tensor`, which the emulation made, stand for `of`: on the device when that is, without memory of its own."""
    if tensor is not of and is_device(of) and not is_device(tensor):
        setattr(tensor.untyped_storage(), _ATTRIBUTE, _ALIAS)
    return tensor


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the storage of a host tensor as pinned, return `tensor`."""
    storage = _storage(tensor)
    if storage is not None:
        setattr(storage, _PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    storage = _storage(tensor)
    return storage is not None and getattr(storage, _PINNED, False)
