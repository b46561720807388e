# SPDX-License-Identifier: Apache-2.0
"""Shared by the operator tests: the operators, the personality switch, float64 FP8 and upstream's stored tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from gates.hpusim import ops as hpusim_ops
from gates.hpusim.settings import settings

hpusim_ops.install()
hpu = torch.ops.hpu
ROOT = Path(__file__).resolve().parents[3]
HARDWARE = ("gaudi2", "gaudi3")
FP8_LIMIT = {"gaudi2": 240.0, "gaudi3": 448.0}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def personality(name: str) -> Iterator[None]:
    """Emulate another card inside the block."""
    before = os.environ.get("HPUSIM_HW")
    os.environ["HPUSIM_HW"] = name
    settings.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del os.environ["HPUSIM_HW"]
        else:
            os.environ["HPUSIM_HW"] = before
        settings.cache_clear()


def upstream_tree() -> Path:
    """The vllm-gaudi source tree: `VLLM_GAUDI_TREE`, else the one the patch stack builds; skips when there is none."""
    candidates = [os.environ.get("VLLM_GAUDI_TREE"), ROOT / "build" / "trees" / "vllm-gaudi"]
    for candidate in candidates:
        if candidate and (Path(candidate) / "vllm_gaudi").is_dir():
            return Path(candidate)
    pytest.skip("no vllm-gaudi source tree: set VLLM_GAUDI_TREE or build the trees")


def stored(name: str) -> dict[str, torch.Tensor]:
    """Tensors upstream keeps beside its operator tests, read from its source tree."""
    from safetensors.torch import load_file

    path = upstream_tree() / "tests" / "unit_tests" / "ops" / "data" / name
    if not path.exists():
        pytest.skip(f"the vllm-gaudi tree has no {path}")
    return load_file(path)


def e4m3_values(limit: float) -> torch.Tensor:
    """Every finite E4M3 value up to `limit`, float64 ascending, from the format's definition."""
    values = [m / 8 * 2.0**-6 for m in range(8)]
    values += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    values = [v for v in values if v <= limit]
    return torch.tensor(sorted({s * v for v in values for s in (-1.0, 1.0)}), dtype=torch.float64)


def nearest_e4m3(values: torch.Tensor, limit: float) -> torch.Tensor:
    """`values` (float64) rounded to E4M3, ties to the even mantissa, saturated at `limit`."""
    table = e4m3_values(limit)
    clamped = values.clamp(-limit, limit)
    above = torch.searchsorted(table, clamped).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    low, high = table[below], table[above]
    distance = (clamped - low).abs() - (high - clamped).abs()
    # Neighbours differ by one mantissa step; the even one is a multiple of two steps.
    step = (high - low).clamp(min=2.0**-9)
    even = torch.where((low / step) % 2 == 0, low, high)
    return torch.where(distance < 0, low, torch.where(distance > 0, high, even))


def fp8(shape: tuple[int, ...], seed: int, limit: float = 200.0) -> torch.Tensor:
    """Random E4M3 tensor whose magnitudes are spread over the range up to `limit`."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.rand(shape, generator=generator) * 9 - 4
    values = torch.randn(shape, generator=generator) * 2**exponent
    return values.clamp(-limit, limit).to(torch.float8_e4m3fn)


def randn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
