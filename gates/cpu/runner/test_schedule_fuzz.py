# SPDX-License-Identifier: Apache-2.0
"""Isolation without a server: random schedules, each request checked against a dictionary of its own tokens."""

from __future__ import annotations

import importlib

import pytest

from gates.cpu.runner.sampling_rules import rules
from gates.cpu.runner.schedule_fuzz import Fuzz, hits_on_resume


def _fuzz(make_engine, asynchronous: bool, steps: int, seed: int, live: int = 16, mixed: bool = False):
    engine = make_engine(asynchronous, 60, max_num_seqs=16)
    hits = hits_on_resume(engine)
    return Fuzz(engine, seed, live, mixed).run(steps), hits


SCORED = ("scored prompts left out", "scored prompts preempted", "scored prompts reset")


def _check(fuzz: Fuzz, hits, steps: int) -> None:
    assert fuzz.wrong == {}
    for event in ("preemptions", "resumes", "aborts", "skips", "chunks", "forced preemptions"):
        assert fuzz.events[event] >= steps // 500, (event, fuzz.events)
    assert hits["resumes on a prefix hit"] >= steps // 100
    assert fuzz.events["finished"] > steps // 20


@pytest.mark.parametrize("asynchronous", [False, True])
def test_random_schedule(make_engine, asynchronous: bool) -> None:
    fuzz, hits = _fuzz(make_engine, asynchronous, 1200, seed=2)
    _check(fuzz, hits, 1200)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_random_schedule_with_mixed_sampling(make_engine, asynchronous: bool) -> None:
    """Half-scored prompts sit out, are preempted and are reset; under async scheduling scores are discarded too."""
    fuzz, _ = _fuzz(make_engine, asynchronous, 200, seed=6, mixed=True)
    assert fuzz.wrong == {}
    assert fuzz.events["finished"] > 12
    for event in (*SCORED, "scores discarded") if asynchronous else SCORED:
        assert fuzz.events[event], (event, fuzz.events)


@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_ten_thousand_steps(make_engine, asynchronous: bool, mixed: bool) -> None:
    fuzz, hits = _fuzz(make_engine, asynchronous, 10_000, seed=10, mixed=mixed)
    _check(fuzz, hits, 10_000)
    if mixed:
        for rule in rules(fuzz.engine.vocabulary):
            assert fuzz.events[rule.name] >= 20, (rule.name, fuzz.events)
        for event in (*SCORED, "scores discarded") if asynchronous else SCORED:
            assert fuzz.events[event] >= 5, (event, fuzz.events)


@pytest.mark.long
@pytest.mark.parametrize(("module", "name"), [("sampling_rows", "apply"), ("output_history", "fill")])
def test_control_of_mixed_sampling(make_engine, monkeypatch, module: str, name: str) -> None:
    """Without settings on their rows, or without complete histories, mixed requests return wrong tokens."""
    owner = importlib.import_module(f"vllm_gaudi.runtime.{module}")
    monkeypatch.setattr(owner, name, lambda *a: None)
    fuzz, _ = _fuzz(make_engine, True, 600, seed=3, mixed=True)
    assert fuzz.wrong, "the fault went unnoticed"


@pytest.mark.long
@pytest.mark.parametrize(("module", "name"), [("prompt_logprobs", "keep"), ("async_tokens", "discard_scores")])
def test_control_of_scored_prompts(make_engine, monkeypatch, module: str, name: str) -> None:
    """Without the scores a prompt had before it sat out, or with those of a discarded frame."""
    monkeypatch.setattr(importlib.import_module(f"vllm_gaudi.runtime.{module}"), name, lambda *a: None)
    if name == "discard_scores":
        with pytest.raises(AssertionError):
            _fuzz(make_engine, True, 1500, seed=3, mixed=True)
        return
    fuzz, _ = _fuzz(make_engine, True, 600, seed=3, mixed=True)
    assert any("prompt score" in wrong for wrong in fuzz.wrong.values()), "the fault went unnoticed"


@pytest.mark.parametrize(
    ("asynchronous", "module", "name", "upstream"),
    [
        (True, "async_inputs", "seed_input_ids", lambda *a: None),
        (True, "async_inputs", "begin_step", lambda *a: set()),
        (True, "logit_rows", "prefill_tokens", lambda request, known: known),
        (False, "logit_rows", "discard_incomplete", lambda *a: None),
        (False, "logit_rows", "one_logit", lambda count: count),
    ],
)
def test_control_without_one_fix(make_engine, monkeypatch, asynchronous, module, name, upstream) -> None:
    """The same schedule with one fix taken out returns wrong tokens or ends in an error."""
    owner = importlib.import_module(f"vllm_gaudi.runtime.{module}")
    monkeypatch.setattr(owner, name, upstream)
    if name == "one_logit":
        monkeypatch.setattr(
            importlib.import_module("vllm_gaudi.runtime.logit_rows"), "prefill_tokens", lambda request, known: known
        )
    try:
        fuzz, _ = _fuzz(make_engine, asynchronous, 0, seed=2)
        for _ in range(15):
            if fuzz.run(100).wrong:
                break
    except (AssertionError, IndexError, RuntimeError, ValueError, KeyError):
        return
    assert fuzz.wrong, "the fault went unnoticed"
