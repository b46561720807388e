# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.hpu.*`, the fused kernels and the index semantics of the device."""


def install() -> None:
    """Register the operator library and the device's index semantics; idempotent, called once by the autoload."""
    from gates.hpusim.ops import indexing, library

    library.install()
    indexing.install()
