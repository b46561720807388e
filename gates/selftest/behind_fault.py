# SPDX-License-Identifier: Apache-2.0
"""One gate against a good server behind a fault of the test's own."""

from __future__ import annotations

import dataclasses
from typing import Any

from gates.controls import proxy
from gates.controls.faults import Fault
from gates.core import gate
from gates.core.client import Client
from gates.core.result import GateResult
from gates.core.runner import run_one


def run_behind(ctx: gate.Context, name: str, **hooks: Any) -> GateResult:
    """The result of gate `name` on the server of `ctx`, whose traffic `hooks` change (see `Fault`)."""
    server, address = proxy.serve(ctx.client.root, Fault("odd", "a test's own", **hooks))
    try:
        client = Client(address, deadline_s=20.0)
        client._model = ctx.facts.model
        return run_one(gate.discover()[name], dataclasses.replace(ctx, client=client))
    finally:
        server.shutdown()
