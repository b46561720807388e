# SPDX-License-Identifier: Apache-2.0
"""Emulated Gaudi: a stand-in for Habana's PyTorch software that runs the unmodified vllm-gaudi plug-in on a CPU.

Nothing here enters a wheel. `python -m gates.hpusim.install VENV` makes it visible to a serving environment.
"""
