# SPDX-License-Identifier: Apache-2.0
"""Mistakes put into the plug-in before an engine starts: harmless on a well-behaved device, fatal under a fault."""

from __future__ import annotations


def never_wait() -> None:
    """The sampled tokens are read without waiting for their copy."""
    from gates.hpusim import streams

    def synchronize(self: streams.Event) -> None:
        """Return at once."""

    streams.Event.synchronize = synchronize
