# SPDX-License-Identifier: Apache-2.0
"""A digest of a model's parameters, to prove that two ways of loading give the same state."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import torch
from torch import nn

VARIABLE = "VLLM_GAUDI_FRONTIER_STATE_HASH"
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


def install() -> None:
    """With the variable set to 1, every loader of vLLM logs the digest of what it loaded. Idempotent.

    Raises:
        ValueError: another value than 0 or 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE}={value!r} is not accepted: set it to 0 or 1")
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    stock = BaseModelLoader.load_model
    if value == "0" or hasattr(stock, "state_hash"):
        return

    @functools.wraps(stock)
    def load_model(self: BaseModelLoader, *args: Any, **kwargs: Any) -> nn.Module:
        model = stock(self, *args, **kwargs)
        report(model)
        return model

    load_model.state_hash = True  # type: ignore[attr-defined]
    BaseModelLoader.load_model = load_model


def report(model: nn.Module) -> None:
    """Log the digest of this rank."""
    from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
    from vllm.logger import init_logger

    digest, each = state_digest(model)
    size = sum(value.numel() * value.dtype.itemsize for value in model.parameters())
    # Only loggers below "vllm" have a handler.
    init_logger(f"vllm.{__name__}").info(
        "state hash of tensor-parallel rank %d of %d: %s (%d parameters, %d bytes)",
        get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size(), digest, len(each), size,
    )  # fmt: skip
