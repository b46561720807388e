# SPDX-License-Identifier: Apache-2.0
"""Bridge settings that can change at run time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_KNOWN = {"PT_COMPILE_ONLY_MODE", "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", "PT_HPU_GPU_MIGRATION"}
_values: dict[str, object] = {}


def _truth(value: object) -> bool:
    return str(value).lower() in ("1", "true")


@contextmanager
def env_setting(name: str, value: object) -> Iterator[None]:
    """Set one bridge setting for the block; NotImplementedError for one whose effect is not emulated."""
    if name not in _KNOWN:
        raise NotImplementedError(f"bridge setting {name} is not emulated; known: {', '.join(sorted(_KNOWN))}")
    before = _values.get(name)
    _values[name] = value
    try:
        yield
    finally:
        _values[name] = before


def get_pt_compile_only_mode() -> bool:
    """True while graphs are compiled without being run (warm-up). The emulation runs them all the same."""
    value = _values.get("PT_COMPILE_ONLY_MODE")
    return _truth(os.environ.get("PT_COMPILE_ONLY_MODE", "0") if value is None else value)


def set_pt_compile_only_mode(value: bool) -> None:
    _values["PT_COMPILE_ONLY_MODE"] = value
