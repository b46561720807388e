# SPDX-License-Identifier: Apache-2.0
"""A digest of a model's parameters, to prove that two ways of loading give the same state."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

BLOCK = 1 << 26  # bytes moved to the host at a time


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 (hex) of dtype, shape and the bytes in row-major order."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    rows = tensor.detach()
    rows = rows.reshape(1) if rows.dim() == 0 else rows
    step = max(1, BLOCK // max(1, rows[:1].numel() * rows.dtype.itemsize))
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step].cpu().contiguous()
        digest.update(block.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def state_digest(model: nn.Module) -> tuple[str, dict[str, str]]:
    """(SHA-256 over all parameters in the order of their names, digest per parameter)."""
    each = {name: tensor_digest(value) for name, value in sorted(model.named_parameters())}
    whole = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in each.items()).encode())
    return whole.hexdigest(), each
