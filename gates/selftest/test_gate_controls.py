# SPDX-License-Identifier: Apache-2.0
"""Every gate is green on a good server, red on its own fault, and green elsewhere (ERROR where the server is none)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gates.controls import faults, matrix, proxy
from gates.core import exits, gate
from gates.core.result import Verdict

GATES = gate.discover()
# The quick set: each fault against its own gates and two neighbours. `make gate-controls` runs the whole matrix.
NEIGHBOURS = ("api-models", "kv-blocks")


def test_good_server_is_green(healthy) -> None:
    _, seen = healthy
    assert {k: v for k, v in seen.items() if v[0] not in (Verdict.PASS, Verdict.SKIP)} == {}
    skipped = {k for k, v in seen.items() if v[0] is Verdict.SKIP}
    unmeasurable = {k for k in GATES if k.startswith("accuracy-")} | {"kl-divergence", "perplexity", "top1-agreement"}
    assert skipped == unmeasurable | {"ruler-aggregation", "ruler-tracking"}


def test_every_fault_has_a_gate_and_every_named_fault_exists() -> None:
    named = {fault for entry in GATES.values() for fault in entry.faults}
    assert named <= set(faults.NAMES)
    assert set(faults.NAMES) - named == set()


def test_every_gate_has_a_fault_that_is_no_broken_server() -> None:
    """One on which it must say FAIL: with a server that is none any more every gate ends in ERROR."""
    assert [k for k, entry in GATES.items() if all(faults.make(fault).transport for fault in entry.faults)] == []


# Each of these has a sibling in the quick set that the same gate catches in the same way.
SIBLINGS = ("dropped-history", "ignored-presence", "lost-auto-argument", "scaled-stream", "hidden-answer")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in SIBLINGS else n for n in faults.NAMES]
)
def test_fault_turns_its_gates_red(name: str, healthy, good_server: str, tmp_path: Path) -> None:
    ctx, seen = healthy
    shutil.copytree(ctx.records, tmp_path, dirs_exist_ok=True)
    passing = {k for k, v in seen.items() if v[0] is Verdict.PASS}
    own = {k for k, entry in GATES.items() if name in entry.faults and k in passing}
    assert own, f"no gate that runs here is meant to catch {name}"
    chosen = [GATES[k] for k in sorted(own | (set(NEIGHBOURS) & passing))]
    spoiled = matrix.spoiled(good_server, name, tmp_path, chosen)
    assert matrix.missed(name, spoiled, own) == {}
    assert matrix.unexpected(name, spoiled, own) == {}


def _only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(matrix.gate, "discover", lambda: {name: GATES[name] for name in names})


@pytest.mark.long
def test_controls_on_a_server_that_is_red_itself_show_nothing(
    good_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    _only(monkeypatch, "api-models", "kv-blocks")
    argv = ["--only", "silent-version", "--own", "--base-url"]
    assert matrix.main([*argv, good_server]) == exits.EXIT_PASS
    server, address = proxy.serve(good_server, faults.make("silent-version"))
    assert matrix.main([*argv, address]) == exits.EXIT_FAIL
    assert "healthy {'api-models': 'FAIL" in capsys.readouterr().out
    # the gates of other faults are not asked for with --own
    assert matrix.main(["--only", "shrunk-cache", "--own", "--base-url", address]) == exits.EXIT_PASS
    assert matrix.main(["--only", "shrunk-cache", "--base-url", address]) == exits.EXIT_FAIL
    server.shutdown()


@pytest.mark.long
def test_a_fault_that_no_gate_was_there_to_catch_is_told(
    good_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    _only(monkeypatch, "kl-divergence", "kv-blocks")  # the first is skipped without a reference
    monkeypatch.setattr(matrix.faults, "NAMES", ("shifted-logits", "shrunk-cache"))
    assert matrix.main(["--base-url", good_server]) == exits.EXIT_PASS
    told = capsys.readouterr().out
    assert "shifted-logits: not shown here, none of its gates passed before: ['kl-divergence']" in told
    assert "shrunk-cache: red ['kv-blocks']" in told
    assert matrix.main(["--base-url", good_server, "--only", "shifted-logits"]) == exits.EXIT_FAIL, "it was asked for"
    monkeypatch.setattr(matrix.toy_model, "reference", lambda cache: None)
    assert matrix.main([]) == exits.EXIT_FAIL, "the stand-in shows every fault"
