# SPDX-License-Identifier: Apache-2.0
"""Guard of the async-inputs patch: what a row is fed when its request was not in the previous step."""

from __future__ import annotations

import pytest


def _prompts(count: int) -> list[list[int]]:
    return [[20 + 7 * i + j for j in range(9 + i)] for i in range(count)]


def test_row_not_sampled_before_takes_host_token(make_engine) -> None:
    engine = make_engine(True, 64)
    for i, prompt in enumerate(_prompts(3)):
        engine.add(f"r{i}", prompt, 24)
    for step in range(200):
        if step % 3 == 2 and engine.scheduler.running:
            skipped = engine.scheduler.running[step % len(engine.scheduler.running)]
            skipped.next_decode_eligible_step = engine.scheduler.current_step + 2
        engine.step()
        if not engine.scheduler.has_requests():
            break
    engine.run()
    assert engine.wrong() == {}


@pytest.mark.parametrize("steps_before", [1, 2, 3, 6])
def test_preempted_between_two_steps(make_engine, steps_before: int) -> None:
    """The resumed request is still in the persistent batch, with blocks it no longer owns."""
    engine = make_engine(True, 64)
    for i, prompt in enumerate(_prompts(3)):
        engine.add(f"r{i}", prompt, 16)
    for _ in range(steps_before):
        engine.step()
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert engine.wrong() == {}


def test_nothing_is_copied_in_the_steady_state(make_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_gaudi.runtime import async_inputs

    engine = make_engine(True, 64)
    for i, prompt in enumerate(_prompts(3)):
        engine.add(f"r{i}", prompt, 30)
    copies = []
    real = async_inputs.seed_input_ids

    def counted(runner, num_decodes, num_tokens) -> None:
        before = runner.input_ids_hpu.clone()
        real(runner, num_decodes, num_tokens)
        copies.append(not bool((before == runner.input_ids_hpu).all()))

    monkeypatch.setattr(async_inputs, "seed_input_ids", counted)
    engine.run()
    assert engine.wrong() == {}
    assert copies
    assert not any(copies[3:]), "after the prefills every decode row was sampled one step before"
