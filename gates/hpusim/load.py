# SPDX-License-Identifier: Apache-2.0
"""Switches the emulation on; called by torch's backend autoload in every process of the environment."""

from __future__ import annotations

_loaded = False
_failure: BaseException | None = None


def load() -> None:
    """Idempotent. HPUSIM_OFF=1 leaves the process alone.

    A wrong setting stops it before anything is changed, so a corrected one can follow. After any other failure the
    process is half emulated: every further call raises RuntimeError from that failure.
    """
    global _loaded, _failure
    if _loaded:
        return
    if _failure is not None:
        raise RuntimeError(
            "the emulated Gaudi failed while it was switched on in this process: start a new one"
        ) from _failure
    _check()
    _loaded = True  # what is imported below may come back here
    try:
        _install()
    except BaseException as error:
        _loaded, _failure = False, error
        raise


def _check() -> None:
    """ValueError for a variable whose value is wrong."""
    from gates.hpusim.settings import settings, switched_off

    if switched_off():
        return
    from gates.hpusim import faults
    from gates.hpusim.faults import config
    from gates.hpusim.ops import window

    settings()
    window.convention()
    for fault in config.from_environment():
        faults.check(fault)


def _install() -> None:
    from gates.hpusim import vision
    from gates.hpusim.settings import settings, switched_off

    vision.install()
    if switched_off():
        return
    import torch
    from habana_frameworks.torch import hpu

    from gates.hpusim import accelerator, devices, faults, hccl, ops, transfers

    chosen = settings()
    torch._register_device_module("hpu", hpu)
    if chosen.native:
        from gates.hpusim import native

        native.install()
    else:
        devices.install()
        transfers.install()
    accelerator.install()
    hccl.install()
    ops.install()
    if chosen.track and not chosen.native:
        from gates.hpusim import tracker

        tracker.install()
    faults.install()
    if chosen.meters_path:
        from gates.hpusim import meters

        meters.install(chosen.meters_path)
