# SPDX-License-Identifier: Apache-2.0
"""Switches the emulation on; called by torch's backend autoload in every process of the environment."""

from __future__ import annotations

_loaded = False


def load() -> None:
    """Idempotent. HPUSIM_OFF=1 leaves the process alone."""
    global _loaded
    if _loaded:
        return
    _loaded = True
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
