# SPDX-License-Identifier: Apache-2.0
"""What a server tells of itself is read as it is told, and what nobody can be told is no error."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls import proxy
from gates.controls.faults import Fault
from gates.core import server_facts
from gates.core.client import Client


@pytest.mark.parametrize("rest", ["", " 1700000000", ' # {trace_id="a}b"} 1.0 1700000000.123'])
def test_samples_with_times_and_exemplars_are_read(good_server: str, rest: str) -> None:
    line = 'vllm:num_requests_running{model_name="a} \\"b",engine="0"} 3.0'
    fault = Fault("f", "an OpenMetrics page", page=lambda path, text: f"{line}{rest}\n{text}")
    server, address = proxy.serve(good_server, fault)
    own = server_facts.metrics(Client(good_server)) or {}
    seen = server_facts.metrics(Client(address)) or {}
    server.shutdown()
    assert seen[server_facts.RUNNING] == own.get(server_facts.RUNNING, 0.0) + 3.0


def test_a_version_that_hangs_is_none(good_server: str) -> None:
    def torn(path: str, body: dict) -> tuple[int, str, bytes] | None:
        return (200, "application/json", b'{"vers') if path == "/version" else None

    server, address = proxy.serve(good_server, Fault("f", "a torn version", raw=torn))
    assert server_facts.read(Client(address)).version is None
    server.shutdown()


def test_what_a_terminal_cannot_show_ends_no_run(
    good_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", narrow)
    cli.main(["run", "--base-url", good_server, "--only", "助手", "--ledger", str(tmp_path / "l")])
    cli._out("助手")
    narrow.seek(0)
    assert narrow.read() == "\\u52a9\\u624b\n"
