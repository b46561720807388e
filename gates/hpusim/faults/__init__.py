# SPDX-License-Identifier: Apache-2.0
"""Fault models: each off by default, switched on by an environment variable or a context manager."""


def install() -> None:
    """Activate the fault models that the environment names; a no-op without any. Called once by the autoload."""
