# SPDX-License-Identifier: Apache-2.0
"""Guard of the logit-rows patch: one row of logits per request, tokens only from complete prefills."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

PREFIX = [50 + j % 40 for j in range(40)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_rows_per_resumed_prefill(make_engine, asynchronous: bool) -> None:
    """Requests preempted in the middle of their output resume on the blocks the prefix cache kept."""
    engine = make_engine(asynchronous, 16)
    for i in range(4):
        engine.add(f"r{i}", PREFIX[: 20 + 3 * i], 60)
    hits = 0
    for _ in range(4000):
        if not engine.scheduler.has_requests():
            break
        engine.step()
        hits += sum(1 for r in engine.scheduler.running if r.num_preemptions and r.num_output_tokens)
    engine.run()
    assert hits, "no request resumed with output"
    assert engine.wrong() == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_incomplete_chunks_of_structured_requests(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=16)
    engine.add("free", PREFIX[:10], 30)
    for i in range(3):
        engine.step()
        engine.add(f"s{i}", [60 + i, *PREFIX], 12, structured=True)
    engine.run()
    assert engine.wrong() == {}


@pytest.mark.parametrize(
    ("prompt", "outputs", "computed", "expected"),
    [
        (10, 0, 0, 10),  # new
        (10, 5, 0, 15),  # preempted, nothing cached: upstream's own rule
        (10, 5, 8, 15),  # resumed on a hit inside the prompt
        (10, 5, 12, 15),  # resumed on a hit inside the output
        (10, 5, 14, 10),  # all but the last token cached: decodes on
        (10, 0, 4, 10),  # new on a prefix hit
        (10, 1, 10, 10),  # skipped for one step
    ],
)
def test_prefill_tokens(prompt: int, outputs: int, computed: int, expected: int) -> None:
    from vllm_gaudi.runtime import logit_rows

    request = SimpleNamespace(num_prompt_tokens=prompt, output_token_ids=[0] * outputs, num_computed_tokens=computed)
    known = prompt + outputs if computed == 0 else prompt
    assert logit_rows.prefill_tokens(request, known) == expected
