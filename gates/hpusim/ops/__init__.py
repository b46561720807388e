# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.hpu.*`, the fused kernels and the index semantics of the device."""


def install() -> None:
    """Register the operator library and the device's index semantics; idempotent, called once by the autoload."""
    from gates.hpusim.ops import indexing, library, window

    window.convention()  # a wrong setting stops the process now, not the first windowed request
    library.install()
    indexing.install()
