# SPDX-License-Identifier: Apache-2.0
"""torchvision beside a CPU torch: its C++ operators do not load, but importing it registers shape functions for two.

Declaring their schemas first lets `import torchvision` succeed; calling one still fails, naming the operator.
"""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None


def install() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("torchvision", "FRAGMENT")
        _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
