# SPDX-License-Identifier: Apache-2.0
"""Entry point of the distribution: vLLM calls :func:`register` in every process, as one of its general plug-ins."""

from __future__ import annotations

import importlib

from vllm_gaudi.distribution.parts import PARTS
from vllm_gaudi.distribution.record import log_once

_registered: list[str] = []


class PartError(RuntimeError):
    """A part of the distribution could not be registered; serving without it would serve something else."""


def register() -> None:
    """Register every part of :data:`PARTS` once per process.

    Raises:
        PartError: naming the part that failed, with its exception as the cause.
    """
    if _registered:
        return
    done = []
    for part in PARTS:
        register_part(part)
        done.append(part)
    _registered.extend(done or ["(no parts)"])
    from vllm.logger import init_logger

    init_logger("vllm.plugins.distribution").info("distribution registered: %s", ", ".join(_registered))
    log_once()


def register_part(part: str) -> None:
    """Import and call one `"module:function"`."""
    module, colon, function = part.partition(":")
    if not colon or not function.isidentifier():
        raise PartError(f"part {part!r} in vllm_gaudi.distribution.parts is not 'module:function'")
    try:
        getattr(importlib.import_module(module), function)()
    except Exception as exc:
        raise PartError(
            f"part {part!r} of the distribution failed to register: {type(exc).__name__}: {exc}. Fix it, or take its "
            "line out of vllm_gaudi/distribution/parts.py and rebuild the wheel"
        ) from exc
