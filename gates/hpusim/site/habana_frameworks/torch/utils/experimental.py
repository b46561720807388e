# SPDX-License-Identifier: Apache-2.0
"""Identity of the card."""

from enum import IntEnum

import torch

from gates.hpusim.settings import settings

__all__ = ["_data_ptr", "_get_device_type", "synDeviceType"]


class synDeviceType(IntEnum):
    synDeviceGaudi2 = 4
    synDeviceGaudi3 = 5


def _get_device_type() -> synDeviceType:
    return synDeviceType(settings().personality.device_type)


def _data_ptr(tensor: torch.Tensor) -> int:
    return torch._C.TensorBase.data_ptr(tensor)  # the plug-in replaces Tensor.data_ptr by a call to this
