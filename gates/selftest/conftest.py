# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the gates' own tests: the stand-in server, and a context around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gates.controls import matrix, toy_server
from gates.core import gate, harness

FIND_HARNESS = harness.interpreter


@pytest.fixture(scope="session", autouse=True)
def _no_harness() -> Iterator[None]:
    """lm-evaluation-harness takes seconds to start: it runs where a test asks for it, whether or not it is here."""

    def absent() -> str:
        raise gate.Skip("not asked for")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "interpreter", absent)
        yield


@pytest.fixture
def find_harness() -> Callable[[], str]:
    """What the gates find the harness with."""
    return FIND_HARNESS


@pytest.fixture(scope="session")
def good_server() -> Iterator[str]:
    server, address = toy_server.start()
    yield address
    server.shutdown()


@pytest.fixture(scope="session")
def healthy(good_server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[gate.Context, dict[str, tuple]]:
    """A context around the good server, which its records know, and every gate's verdict on it."""
    ctx = matrix.context(good_server, Path(tmp_path_factory.mktemp("records")))
    return ctx, matrix.settled(ctx, gate.discover().values())
