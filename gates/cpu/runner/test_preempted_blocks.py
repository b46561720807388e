# SPDX-License-Identifier: Apache-2.0
"""By priority, a chunk that was scheduled in a step may be preempted in the same step: its blocks hold nothing."""

from __future__ import annotations

from typing import Any

import pytest


def _chunk_preempted_in_its_own_step(engine: Any) -> None:
    """`victim` has its last three blocks scheduled when `urgent` needs one, and starts again once the others end."""
    priorities = {"victim": 7}
    add = engine.scheduler.add_request

    def prioritised(request: Any) -> None:
        request.priority = priorities.get(request.request_id, 0)
        add(request)

    engine.scheduler.add_request = prioritised
    engine.add("victim", [20 + 3 * i % 170 for i in range(192)], 4)
    engine.step()
    engine.add("urgent", [40 + i for i in range(15)], 8)
    engine.add("other", [70 + i for i in range(40)], 6)
    engine.run()


@pytest.fixture
def by_priority(make_engine):
    def make(asynchronous: bool) -> Any:
        arguments = {"max_num_batched_tokens": 256, "long_prefill_token_threshold": 48}
        return make_engine(asynchronous, 17, scheduling_policy="priority", **arguments)

    return make


def _victims(engine: Any) -> list[int]:
    """Run; computed tokens of each request that was preempted."""
    found: list[int] = []
    preempt = engine.scheduler._preempt_request

    def noted(request: Any, *arguments: Any, **options: Any) -> None:
        found.append(request.num_computed_tokens)
        preempt(request, *arguments, **options)

    engine.scheduler._preempt_request = noted
    _chunk_preempted_in_its_own_step(engine)
    return found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_blocks_of_a_preempted_chunk_are_no_prefix(by_priority, monkeypatch, asynchronous: bool) -> None:
    from vllm.v1.core.sched import scheduler

    from vllm_gaudi.runtime.sync_scheduler import PrefillShareScheduler

    monkeypatch.setattr(scheduler, "Scheduler", PrefillShareScheduler)
    engine = by_priority(asynchronous)
    assert _victims(engine) == [144], "preempted after its last chunk was scheduled, before it ran"
    assert engine.wrong() == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_control_blocks_left_in_the_cache(by_priority, monkeypatch, asynchronous: bool) -> None:
    """Upstream's schedulers: the victim resumes on blocks that were never written."""
    from vllm_gaudi.runtime import preempted_blocks

    monkeypatch.setattr(preempted_blocks, "withdraw", lambda *a: None)
    engine = by_priority(asynchronous)
    assert _victims(engine) == [144]
    assert engine.wrong() == {"victim": 0}
