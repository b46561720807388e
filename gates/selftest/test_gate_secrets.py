# SPDX-License-Identifier: Apache-2.0
"""Keys that were pasted with the server's arguments: nowhere on disk, and nothing else is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.core.secrets import redacted

SECRET = (
    "--api-key sk-geheim99",
    "--api-key=geheim",
    "--api-key geheim1 geheim2",
    "--api-key 'ge heim geheim'",
    "--hf-token geheim",
    "VLLM_API_KEY=geheim12345",
    "HF_TOKEN=geheim",
    "--ssl-keyfile-password geheim",
    """--override '{"api_key": "geheim"}'""",
    "-H 'Bearer geheim'",
    "sk-geheim-99",
    "https://user:geheim@host/v1",
)
OPEN = (
    "--max-num-batched-tokens 4096 --tokenizer /models/beam --tokenizer-mode auto",
    "--enable-prefix-caching --kv-cache-dtype fp8_e4m3 --port 8000",
    "VLLM_GAUDI_FRONTIER_STATE_HASH=1 vllm serve beam --ssl-keyfile /etc/key.pem",
)


@pytest.mark.parametrize("text", SECRET)
def test_a_secret_is_hidden_and_its_neighbours_are_not(text: str) -> None:
    shown = redacted(f"--tensor-parallel-size 8 {text} --max-num-seqs 64")
    assert "heim" not in shown
    assert "--tensor-parallel-size 8 " in shown
    assert shown.endswith(" --max-num-seqs 64")


@pytest.mark.parametrize("text", OPEN)
def test_what_decides_a_verdict_is_not_hidden(text: str) -> None:
    """Two servers that differ in it must not share a record."""
    assert redacted(text) == text


def test_no_file_of_a_run_holds_a_secret(good_server: str, tmp_path: Path) -> None:
    argv = ["run", "--base-url", good_server, "--profile", "stand-in", "--only", "kv-blocks"]
    argv += ["--ledger", str(tmp_path / "l.jsonl"), f"--server-args={' '.join(SECRET)} --tp 8"]
    assert cli.main(argv) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2, "the ledger and a record"
    for path in files:
        assert "heim" not in path.read_text()
        assert "--tp 8" in path.read_text()
