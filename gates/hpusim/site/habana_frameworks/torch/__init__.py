# SPDX-License-Identifier: Apache-2.0
"""Habana's `habana_frameworks.torch`: importing it switches the device on."""

import torch

from gates.hpusim.load import load

load()

from habana_frameworks.torch import core, distributed, hpex, hpu, internal, utils  # noqa: E402

__all__ = ["core", "distributed", "hpex", "hpu", "internal", "torch", "utils"]
