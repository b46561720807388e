# SPDX-License-Identifier: Apache-2.0
"""Fault models: how the device misbehaves, each off by default.

Switched on by the environment (config.py has the list) or, in a test, by `with faults.enabled("RUN_AHEAD", "on")`.
Every model is a module of this package with one function `start(fault) -> stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from gates.hpusim.faults import config
from gates.hpusim.settings import settings

_installed = False
# They listen to operators and transfers, which only the pure-Python lane reports.
PURE_LANE_ONLY = ("RUN_AHEAD", "ASYNC_COPY", "ROUND_TRIP")


def start(fault: config.Fault) -> Callable[[], None]:
    """Switch one model on; the result switches it off again. FaultError when the lane in use cannot show it."""
    check(fault)
    return import_module(f"gates.hpusim.faults.{fault.model.lower()}").start(fault)


def check(fault: config.Fault) -> None:
    """FaultError when the lane in use cannot show the model."""
    if settings().native and fault.model in PURE_LANE_ONLY:
        raise config.FaultError(f"{config.PREFIX}{fault.model} needs the pure-Python lane: unset HPUSIM_NATIVE")


@contextmanager
def enabled(model: str, text: str) -> Iterator[None]:
    """The model is on inside the block, with `text` as its variable's value."""
    stop = start(config.parse(model, text))
    try:
        yield
    finally:
        stop()


def install() -> None:
    """Switch on the models that the environment names; idempotent, called once by the autoload."""
    global _installed
    if not _installed:
        _installed = True
        for fault in config.from_environment():
            start(fault)
