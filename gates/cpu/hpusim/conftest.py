# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the emulated Gaudi's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hpusim_ops import HARDWARE, personality


@pytest.fixture(params=HARDWARE)
def hardware(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once per emulated card."""
    with personality(request.param):
        yield request.param
