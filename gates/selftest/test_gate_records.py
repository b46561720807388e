# SPDX-License-Identifier: Apache-2.0
"""Gates that compare a server with itself: nothing is green before there is something to compare with."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gates import __main__ as cli
from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import gate, ledger, records, server_facts
from gates.core.client import Client
from gates.core.errors import GateError
from gates.core.result import GateResult, Verdict
from gates.core.runner import run_one

GATES = gate.discover()
DEFAULT = gate.Context.__dataclass_fields__["records"].default
RECORDING = ("canary", "output-length-band", "kv-blocks")


@pytest.fixture(scope="module")
def stand_in(good_server: str) -> gate.Context:
    return matrix.context(good_server, Path("nowhere"))


@pytest.fixture
def ctx(stand_in: gate.Context, tmp_path: Path) -> gate.Context:
    return dataclasses.replace(stand_in, records=tmp_path / "records")


def _file(ctx: gate.Context, name: str) -> Path:
    (path,) = ctx.records.glob(f"{name}-*.json")
    return path


def _spoiled(ctx: gate.Context, name: str, **hooks: object) -> GateResult:
    server, address = proxy.serve(ctx.client.root, Fault("f", "a test's", **hooks))
    try:
        client = Client(address)
        client._model = ctx.facts.model
        return run_one(GATES[name], dataclasses.replace(ctx, client=client))
    finally:
        server.shutdown()


@pytest.mark.parametrize("name", RECORDING)
def test_the_first_run_is_skipped_and_the_second_compares(ctx: gate.Context, name: str) -> None:
    first = run_one(GATES[name], ctx)
    assert (first.verdict, first.reason) == (Verdict.SKIP, "recorded, nothing to compare with yet")
    kept = _file(ctx, name).read_bytes()
    assert run_one(GATES[name], ctx).verdict is Verdict.PASS
    assert _file(ctx, name).read_bytes() == kept, "a later run does not move what it is compared with"
    assert [path.name for path in ctx.records.iterdir()] == [_file(ctx, name).name], "nothing else is left behind"


@pytest.mark.parametrize("text", ["", "1", "[]", '{"schema": 1', '{"schema": 1, "value": 1234}', "\x00\xff"])
def test_a_damaged_record_is_named_and_kept(ctx: gate.Context, text: str) -> None:
    run_one(GATES["kv-blocks"], ctx)
    path = _file(ctx, "kv-blocks")
    path.write_bytes(text.encode("latin-1"))
    seen = run_one(GATES["kv-blocks"], ctx)
    assert seen.verdict is Verdict.ERROR
    assert "the record is damaged" in seen.reason
    assert str(path) in seen.reason
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("canary", [{"tokens": [1, 2], "logprobs": [float("nan")]}]),
        ("canary", []),
        ("output-length-band", {"counts": [0, 0]}),
        ("output-length-band", {"counts": ["x"]}),
        ("kv-blocks", 0),
        ("kv-blocks", "64"),
    ],
)
def test_a_record_of_nonsense_is_named(ctx: gate.Context, name: str, value: object) -> None:
    run_one(GATES[name], ctx)
    path = _file(ctx, name)
    path.write_text(json.dumps({**json.loads(path.read_text()), "value": value}))
    seen = run_one(GATES[name], ctx)
    assert seen.verdict is Verdict.ERROR, seen
    assert str(path) in seen.reason


def test_another_server_has_another_record(ctx: gate.Context) -> None:
    run_one(GATES["kv-blocks"], ctx)
    other = dataclasses.replace(ctx, server_args="--max-num-seqs 4")
    assert run_one(GATES["kv-blocks"], other).reason == records.NOTHING_YET
    unknown = dataclasses.replace(ctx, server_args="")
    assert records.of(unknown, "kv-blocks").key["server"] == ctx.client.root, "the address, where nothing else is told"


def test_a_record_is_written_whole_or_not_at_all(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    record = records.of(ctx, "kv-blocks")
    with pytest.raises(GateError, match=r"cannot keep the record \(No space left on device\)"):
        record.keep(64)
    assert not list(ctx.records.iterdir())
    assert record.read(lambda value: value) is None


def test_a_place_that_cannot_be_written_to_is_named(ctx: gate.Context, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    seen = run_one(GATES["kv-blocks"], dataclasses.replace(ctx, records=tmp_path / "file" / "records"))
    assert seen.verdict is Verdict.ERROR
    assert "record" in seen.reason
    assert "pathlib" not in seen.reason


def test_records_lie_beside_the_ledger(stand_in: gate.Context, tmp_path: Path) -> None:
    argv = ["run", "--base-url", stand_in.client.root, "--profile", "stand-in", "--only", "kv-blocks"]
    argv += ["--ledger", str(tmp_path / "there" / "l.jsonl"), "--server-args", "--max-num-seqs 4"]
    assert [cli.main(argv) for _ in range(2)] == [0, 0]
    (path,) = (tmp_path / "there" / "records").iterdir()
    assert json.loads(path.read_text())["key"]["server"] == "--max-num-seqs 4"
    last = ledger.load(tmp_path / "there" / "l.jsonl")[-1]
    assert last.results["kv-blocks"].verdict is Verdict.PASS
    assert Path("ledger/records") == DEFAULT, "`make clean` removes build/"


def test_a_server_that_wavers_is_no_record(ctx: gate.Context) -> None:
    rng = random.Random(1)

    def waver(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            for row in choice.get("prompt_logprobs") or []:
                for entry in (row or {}).values():
                    entry["logprob"] -= rng.random()
        return answer

    seen = _spoiled(ctx, "canary", reply=waver)
    assert seen.verdict is Verdict.FAIL
    assert "the same request twice gives answers" in seen.reason
    assert not ctx.records.exists()


def test_another_tokenizer_is_seen_by_the_canary(ctx: gate.Context) -> None:
    run_one(GATES["canary"], ctx)

    def other(path: str, body: dict, answer: dict) -> dict:
        return {"tokens": [*answer["tokens"], 32]} if path == "/tokenize" else answer

    seen = _spoiled(ctx, "canary", reply=other)
    assert seen.verdict is Verdict.FAIL
    assert "another tokenizer" in seen.reason


def _told(ctx: gate.Context, name: str, change: Callable[[dict], dict]) -> list[str]:
    """Reasons of two runs, server facts read anew, on a server whose model card is changed."""

    def told(path: str, told: dict) -> dict:
        return {**told, "data": [change(card) for card in told["data"]]} if "data" in told else told

    server, address = proxy.serve(ctx.client.root, Fault("f", "another card", told=told))
    reasons = []
    for _ in range(2):
        client = Client(address)
        now = dataclasses.replace(ctx, client=client, facts=server_facts.read(client))
        reasons.append(run_one(GATES[name], now).reason)
    server.shutdown()
    return reasons


def test_a_card_that_moves_is_the_same_server(ctx: gate.Context) -> None:
    """Nor must what it says of its loaded state hide that its answers changed: that is the canary's to see."""
    moves = itertools.count()
    seen = _told(ctx, "canary", lambda card: {**card, "queue": next(moves), "state_hash": str(next(moves))})
    assert seen == [records.NOTHING_YET, ""]


def test_what_moves_in_a_card_is_no_part_of_a_run(ctx: gate.Context) -> None:
    """Or a killed run could not be gone on with."""
    moves = itertools.count()

    def told(path: str, told: dict) -> dict:
        cards = [{**card, "queue": next(moves), "root": "/models/beam"} for card in told.get("data") or []]
        return {**told, "data": cards} if cards else told

    server, address = proxy.serve(ctx.client.root, Fault("f", "a card that moves", told=told))
    first, second = (server_facts.read(Client(address)) for _ in range(2))
    server.shutdown()
    assert first == second
    assert first.model_card["root"] == "/models/beam"


def test_the_engine_that_shrank_is_seen_behind_another(ctx: gate.Context) -> None:
    def page(blocks: int) -> dict[str, Callable[[str, str], str]]:
        row = 'vllm:cache_config_info{{engine="{}",num_gpu_blocks="{}"}} 1.0\n'
        return {"page": lambda path, text: row.format(0, 64) + row.format(1, blocks)}

    assert _spoiled(ctx, "kv-blocks", **page(64)).verdict is Verdict.SKIP
    seen = _spoiled(ctx, "kv-blocks", **page(32))
    assert seen.verdict is Verdict.FAIL
    assert seen.measurement is not None
    assert seen.measurement.value == 0.5


def _engines(*blocks: str) -> dict[str, Callable[[str, str], str]]:
    rows = (f'vllm:cache_config_info{{engine="{n}",num_gpu_blocks="{count}"}} 1.0\n' for n, count in enumerate(blocks))
    text = "".join(rows)
    return {"page": lambda path, _: text}


@pytest.mark.parametrize("left", [("64",), ("64", "64", "None")], ids=["gone", "says nothing"])
def test_an_engine_that_is_lost_is_seen(ctx: gate.Context, left: tuple[str, ...]) -> None:
    assert _spoiled(ctx, "kv-blocks", **_engines("64", "64", "64")).verdict is Verdict.SKIP
    assert _spoiled(ctx, "kv-blocks", **_engines("64", "64", "64")).verdict is Verdict.PASS
    seen = _spoiled(ctx, "kv-blocks", **_engines(*left))
    assert (seen.verdict, "engines" in seen.reason) == (Verdict.FAIL, True)
