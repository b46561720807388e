# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the gates' own tests: the stand-in server, and a context around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gates.controls import matrix, toy_server
from gates.core import gate


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
