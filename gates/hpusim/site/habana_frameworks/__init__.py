# SPDX-License-Identifier: Apache-2.0
"""Stand-in for Habana's PyTorch software: runs vllm-gaudi on a CPU. See the emulated Gaudi's README."""


def __autoload() -> None:
    """Entry point of group `torch.backends`: torch calls it at the end of its own import."""
    from gates.hpusim.load import load

    load()
