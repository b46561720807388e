# SPDX-License-Identifier: Apache-2.0
"""Mutated builds: the rebuilt server with one known fault in its code, for gates that a proxy cannot test honestly.

Nothing is installed: `environment(name)` puts a plug-in beside the checkout on PYTHONPATH, which vLLM loads into every
process of that one server. A wheel never holds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "mutant_site"
VARIABLE = "GATES_MUTANT"


class _Setter:
    """What the component mutants expect of pytest's monkeypatch."""

    @staticmethod
    def setattr(owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)


def _component(name: str) -> None:
    """A mutant of the component tests (gates/cpu/beam/mutants.py)."""
    from gates.cpu.beam import mutants

    next(mutant for mutant in mutants.MUTANTS if mutant.name == name).apply(_Setter)


def _rounded_router() -> None:
    """Corrected scores in BF16: beside a bias of about 28 the differences between experts are lost."""
    _component("corrected scores in bf16")


def _swapped_experts() -> None:
    """Expert tensors land one place further on."""
    _component("experts loaded one place on")


def _shifted_logits() -> None:
    """Every other token's logit is half a nat too high."""
    from vllm_gaudi.models.beam import model

    right = model.softcap

    def softcap(logits: Any, cap: float, rounding: Any) -> Any:
        out = right(logits, cap, rounding)
        out[..., ::2] += 0.5
        return out

    model.softcap = softcap


def _window_off_by_one() -> None:
    """Decoding sees one key fewer than the window of its sliding layers, prefill does not."""
    from vllm_gaudi.runtime import windows

    right = windows.decode_span
    windows.decode_span = lambda position, window, block: right(position, window - 1, block)


def _stale_prefix() -> None:
    """A block's key in the prefix cache is its own tokens alone, whatever came before them."""
    from vllm.v1.core import kv_cache_utils

    right = kv_cache_utils.hash_block_tokens

    def orphan(hash_function: Any, parent: Any, tokens: Any, extra_keys: Any = None) -> Any:
        return right(hash_function, None, tokens, extra_keys)

    kv_cache_utils.hash_block_tokens = orphan


BUILDS: dict[str, Callable[[], None]] = {
    "rounded-router": _rounded_router,
    "swapped-experts": _swapped_experts,
    "shifted-logits": _shifted_logits,
    "window-off-by-one": _window_off_by_one,
    "stale-prefix": _stale_prefix,
}


def apply() -> None:
    """vLLM's entry point: lay the fault that the environment names into this process.

    Raises:
        KeyError: no such mutant.
    """
    name = os.environ.get(VARIABLE)
    if name:
        BUILDS[name]()


def environment(name: str) -> dict[str, str]:
    """Environment variables that make a server the mutant `name`."""
    path = os.pathsep.join(filter(None, (str(SITE), str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {VARIABLE: name, "PYTHONPATH": path}
