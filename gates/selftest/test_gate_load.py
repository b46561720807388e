# SPDX-License-Identifier: Apache-2.0
"""Profile `node` on a server as slow as the port pages measured: every request and gate ends with time to spare.

The real gates run against a client that answers at once and notes what it was asked for; what that takes follows from
the written rates (gates/core/load.py). No server, no clock, no threads.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gates.core import gate, harness, ledger, load, prompts, runner, scoring, thresholds, wording
from gates.core.client import Client, Reply, ServerTrouble, Stream
from gates.core.errors import GateError
from gates.core.profile import Profile, get
from gates.core.scoring import Continuation, Scores
from gates.core.server_facts import ServerFacts
from gates.device import cache_honesty, isolation

GATES = gate.discover()
NODE = get("node")
LONG = tuple(name for name, entry in GATES.items() if entry.asks is not None and name != "accuracy-lookup")
MARGINS = 2.0, 1.5  # of a request's deadline, of a gate's
PAGE_CACHE, PAGE_SEQUENCES = 776_448, 16  # Beam page: tokens of the KV cache, sequences
CHUNK = 4096  # both pages: prompt tokens a step
FILLER_TOKENS = 128
CONTEXT = 262_144


class Sent(NamedTuple):
    """A request: prompt tokens, most and least answer tokens, and how many like it may be under way."""

    tokens: int
    answer: int
    least: int
    at_once: int

    def each_s(self, reads: int) -> float:
        return load.Asked(self.tokens, self.answer, at_once=self.at_once, reads=reads).each_s


def _length(text: str) -> int:
    """A filler sentence is `FILLER_TOKENS`, any other word one."""
    return sum(FILLER_TOKENS if word == "~" else 1 for word in text.split())


class _Notes(Client):
    """Answers at once; keeps what was sent, in batches of what may overlap."""

    def __init__(self) -> None:
        super().__init__("http://nowhere.invalid", model="m")
        self.batches: list[list[Sent]] = []
        self._width = 1

    def ending(self, seconds: float) -> Client:
        return self

    def map(self, call: Callable[[Any], Any], items: Iterable[Any], *, at_once: int | None = None) -> list[Any]:
        listed = list(items)
        self.batches.append([])
        self._width = min(at_once or NODE.concurrency, len(listed))
        try:
            return [call(item) for item in listed]
        finally:
            self._width = 1
            self.batches.append([])

    def _note(self, prompt: Any, options: dict[str, Any]) -> None:
        tokens = _length(prompt) if isinstance(prompt, str) else len(prompt)
        sent = Sent(tokens, options["max_tokens"], options.get("min_tokens", 0), self._width)
        if not self.batches or self._width == 1:
            self.batches.append([])
        self.batches[-1].append(sent)

    def tokenize(self, text: str) -> list[int]:
        return [7] * min(_length(text), 2 * CONTEXT)

    def chat(self, messages: Any, *, deadline_s: float | None = None, **options: Any) -> dict[str, Any]:
        self._note(messages, options)
        return {"choices": [{"message": {"content": ""}}]}

    def complete(self, prompt: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        self._note(prompt, options)
        return {"choices": [{"text": "x " * options["max_tokens"]}]}

    def stream(self, path: str, body: Any, **options: Any) -> Any:
        self._note(body["prompt"], body)
        return Stream(200, [{"choices": [{"text": "x"}]}], [0.0])

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if path != "/metrics":
            raise ServerTrouble(f"{method} {path} is not for this test")
        return Reply(404, "", None, 0.0)


def _continue(client: Client, prompt: Any, *, max_tokens: int, **options: Any) -> Continuation:
    client.complete(prompt, max_tokens=max_tokens)
    return Continuation((7,) * max_tokens, (0.0,) * max_tokens, "length")


def _score(client: Client, tokens: Any, **options: Any) -> Scores:
    client.complete(tokens, max_tokens=1)
    return Scores((0.0,) * (len(tokens) - 1), ())


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of few words, and no wait for a server that is none."""
    plain = dataclasses.replace(wording.PLAIN, filler=lambda rng: "~")
    monkeypatch.setitem(wording.WORDINGS, "plain", plain)
    monkeypatch.setattr(prompts, "SENTENCES", 8)
    monkeypatch.setattr(scoring, "continue_greedily", _continue)
    monkeypatch.setattr(scoring, "score", _score)
    monkeypatch.setattr(cache_honesty, "NOTICED_S", 0.0)


def _context(client: Client, sizes: Profile, tmp: Path) -> gate.Context:
    facts = ServerFacts(version="", lock_hash=None, model="m", max_model_len=CONTEXT, model_card={})
    return gate.Context(client=client, facts=facts, profile=sizes, thresholds=thresholds.load(), records=tmp)


def _sent(name: str, sizes: Profile, tmp: Path) -> tuple[list[list[Sent]], gate.Context]:
    client = _Notes()
    ctx = _context(client, sizes, tmp)
    result = runner.run_one(GATES[name], ctx)
    assert not result.reason.startswith(("AttributeError", "KeyError", "TypeError")), result.reason
    assert client.batches, result
    return [batch for batch in client.batches if batch], ctx


def _complaints(name: str, sizes: Profile, tmp: Path, *, margins: tuple[float, float] = MARGINS) -> list[str]:
    """What would end in ERROR, or without its margin, on the slow server; and where the estimate is another."""
    batches, ctx = _sent(name, sizes, tmp)
    reads = 2 if name == "isolation" else 1
    found = []
    slowest = 0.0
    for batch in batches:
        width = batch[0].at_once
        costs = [sent.each_s(reads) for sent in batch]
        # a worker sends its next request when its last is answered: at most `width` wait for each other
        slowest = max(slowest, *(sum(costs[i : i + width]) for i in range(max(1, len(costs) - width + 1))))
        most = max(sent.tokens for sent in batch) * width
        if name != "isolation" and width > 1 and most > (NODE.tokens_at_once or 0) * 1.05:
            found.append(f"{most} tokens at once")
    if slowest * margins[0] > sizes.deadline_s:
        found.append(f"slowest answer {slowest:.0f} s of {sizes.deadline_s:.0f}")
    whole = sum(sent.each_s(reads) for batch in batches for sent in batch)
    if whole * margins[1] > sizes.gate_deadline_s:
        found.append(f"gate {whole:.0f} s of {sizes.gate_deadline_s:.0f}")
    foretold = runner.at_most_s(GATES[name], ctx)
    if foretold and not 0.95 < whole / foretold < 1.05:
        found.append(f"{foretold:.0f} s were foretold, {whole:.0f} s follow from what was sent")
    print(f"{name}: slowest {slowest:.0f} s, whole {whole:.0f} s, foretold {foretold:.0f} s")
    return found


@pytest.mark.parametrize("name", LONG)
def test_a_slow_server_ends_in_time(name: str, tmp_path: Path) -> None:
    assert not _complaints(name, NODE, tmp_path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("isolation", "slowest answer"),
        ("isolation", "gate"),
        ("ruler-multi-key", "tokens at once"),
        ("ruler-multi-key", "slowest answer"),
        ("decode-vs-prefill", "slowest answer"),
        ("cache-honesty", "gate"),
    ],
)
def test_unbounded_widths_do_not(name: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: sizes that bound the number of requests alone, as the profile's once did, are late by themselves."""
    monkeypatch.setattr(cache_honesty, "LONGEST", NODE.samples // 4)
    unbounded = {"tokens_at_once": None, "crowd_tokens": None, "isolation_rung": None, "isolation_outputs": 512}
    sizes = dataclasses.replace(NODE, deadline_s=1800.0, gate_deadline_s=4 * 3600.0, **unbounded)
    assert any(complaint in found for found in _complaints(name, sizes, tmp_path, margins=(1.0, 1.0)))


def test_every_gate_that_sends_the_profiles_lengths_foretells_it() -> None:
    for name, entry in GATES.items():
        source = inspect.getsource(sys.modules[entry.run.__module__])
        if "ctx.profile.rungs" in source and name not in ("one-token-only", "endless-thinking"):
            assert entry.asks is not None, name


def test_isolation_holds_more_than_the_cache(tmp_path: Path) -> None:
    """Any 16 neighbours outgrow the Beam page's cache, and answers last until as many prompts have been read: while
    one is read in chunks, the others decode a token a chunk."""
    batches, _ = _sent("isolation", NODE, tmp_path)
    (sent,) = batches
    width = sent[0].at_once
    held = [sum(one.tokens for one in sent[i : i + width]) for i in range(len(sent) - width + 1)]
    assert width >= PAGE_SEQUENCES
    assert min(held) > 1.2 * PAGE_CACHE
    assert min(one.least for one in sent) > max(held) / CHUNK
    assert len(sent) == NODE.isolation_outputs >= 84  # the Beam page's


def test_samples_are_kept(tmp_path: Path) -> None:
    """Bounding what is under way costs no sample: eight a length, where prompts are short and where they are long."""
    for name in ("ruler-multi-key", "decode-vs-prefill"):
        batches, _ = _sent(name, NODE, tmp_path)
        for rung in NODE.rungs:
            made = [s for batch in batches for s in batch if s.answer > 1 and abs(s.tokens - rung) <= 0.06 * rung]
            assert len(made) == NODE.samples // len(NODE.rungs)


def test_the_harness_asks_short_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It bounds requests by number, which is right for the shortest length alone."""
    monkeypatch.setattr(harness, "interpreter", lambda: "python")
    ctx = _context(_Notes(), NODE, tmp_path)
    entry = GATES["accuracy-lookup"]
    assert entry.asks is not None
    (asked,) = entry.asks(ctx)
    assert asked.at_once == ctx.at_once(asked.tokens)
    assert asked.each_s * asked.at_once * MARGINS[0] < NODE.deadline_s
    assert asked.seconds * MARGINS[1] < NODE.gate_deadline_s


@pytest.mark.parametrize("name", ["quick", "tiny", "tiny-muse", "stand-in"])
def test_the_other_profiles_are_bounded_by_number_alone(name: str, tmp_path: Path) -> None:
    sizes = get(name)
    ctx = _context(_Notes(), sizes, tmp_path)
    assert {ctx.at_once(rung) for rung in sizes.rungs} == {sizes.concurrency}
    assert isolation._width(ctx, sizes.rungs[-1]) == 4 * sizes.concurrency
    assert set(cache_honesty._rungs(ctx)) == {sizes.rungs[-1]}
    assert not any(runner.at_most_s(entry, ctx) for entry in GATES.values())


@pytest.mark.parametrize(
    ("tokens", "budget", "width"),
    [(2048, None, 16), (2048, 500_000, 16), (126_000, 500_000, 3), (250_000, 500_000, 2), (600_000, 500_000, 1)],
)
def test_at_once(tokens: int, budget: int | None, width: int) -> None:
    assert load.at_once(tokens, 16, budget) == width


def test_the_rate_is_the_pages() -> None:
    """2K in 0.52 s; 256K in 346 to 461 s."""
    assert load.prefill_s(2048) == pytest.approx(0.52, rel=0.05)
    assert 346 <= load.prefill_s(262_144) <= 461


def test_the_whole_run_is_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "interpreter", lambda: "python")
    ctx = _context(_Notes(), NODE, tmp_path)
    chosen = [dataclasses.replace(entry, run=_skips) for entry in GATES.values()]
    said: list[str] = []
    with ledger.Writer(tmp_path / "l.jsonl") as writer:
        runner.run_all(chosen, ctx, writer, writer.start({"profile": "node"}), say=said.append)
    whole = sum(runner.at_most_s(entry, ctx) for entry in chosen)
    print(said[0])
    assert f"at most about {whole / 3600:.1f} h" in said[0]
    needles = next(line for line in said if "needles ..." in line)
    assert "at most about" in needles


def _skips(ctx: gate.Context) -> Any:
    raise GateError("not run")
