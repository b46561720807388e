# SPDX-License-Identifier: Apache-2.0
"""Before the first gate: a server that is none, or turns the client away, is told with what to do."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls import matrix, toy_server
from gates.core import exits, start, transport


def _answering(status: int, text: bytes = b"no", **headers: str) -> str:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

    return toy_server.start(Handler)[1]


@pytest.mark.parametrize(
    ("status", "headers", "key", "says"),
    [
        (307, {"Location": "https://there/v1/models"}, "", "it redirects to https://there/v1/models: give the address"),
        (401, {}, "", "it wants a key: give it ($GATES_API_KEY or --api-key)"),
        (403, {}, "sk-geheim", "its key was refused: check it"),
        (404, {}, "", "is this the address of an OpenAI API? give it without a path"),
        (429, {}, "", "ask again later"),
        (500, {}, "", "see the server's log"),
        (200, {}, "", "is this an OpenAI API?"),
    ],
)
def test_a_server_that_turns_away(
    status: int, headers: dict, key: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    address = _answering(status, **headers)
    ledger = tmp_path / "l.jsonl"
    argv = ["run", "--base-url", address, "--api-key", key, "--ledger", str(ledger)]
    assert cli.main(argv) == exits.EXIT_ERROR
    asked, error = capsys.readouterr().err.splitlines()
    assert asked.startswith(f"asking {address} for its models (at most 30 s)")
    assert says in error
    assert address in error
    assert error.endswith("no gate was run: exit code 3")
    assert not ledger.exists()


def test_a_server_that_is_gone(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["run", "--base-url", "http://127.0.0.1:9"]) == exits.EXIT_ERROR
    assert "is the server up?" in capsys.readouterr().err
    assert matrix.main(["--base-url", "http://127.0.0.1:9"]) == exits.EXIT_ERROR
    assert capsys.readouterr().err.startswith("error: ")


def test_a_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(start, "FIRST_DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert cli.main(["run", "--base-url", address, "--profile", "node"]) == exits.EXIT_ERROR
    assert "no answer within 0.2 s" in capsys.readouterr().err


def test_the_controls_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture) -> None:
    assert matrix.main(["--profile", "no-such"]) == exits.EXIT_USAGE
    assert "no-such" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "host"])
def test_authorities_that_are_none_are_told(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "authority.pem"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    transport._authorities.cache_clear()
    try:
        assert cli.main(["run", "--base-url", "http://127.0.0.1:9"]) == exits.EXIT_USAGE
    finally:
        transport._authorities.cache_clear()
    told = capsys.readouterr().err
    assert "no certificates (" in told
    assert f"at $SSL_CERT_FILE {path}: check the path" in told
    assert "Traceback" not in told
