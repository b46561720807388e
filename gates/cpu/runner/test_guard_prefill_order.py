# SPDX-License-Identifier: Apache-2.0
"""Guard of the prefill-order patch: a prefix block is written before a request of the same step reads it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("asynchronous", [False, True])
def test_block_is_written_before_it_is_read(make_engine, asynchronous: bool) -> None:
    """A request takes the row a finished one left, ahead of the chunked prompt whose blocks it shares."""
    shared = 0
    for case in range(8):
        engine = make_engine(asynchronous, 64, max_num_batched_tokens=48)
        prompt = [40 + case * 10 + j for j in range(96)]
        engine.add("first", [20, 21, 22 + case], 2)
        engine.step()
        engine.add("writer", prompt, 6)
        for _ in range(1 + case % 2):
            engine.step()
        engine.add("reader", [*prompt[:32 + 16 * (case % 3)], 30, 31], 6)
        real = engine.scheduler.kv_cache_manager.get_computed_blocks

        def counted(request, real=real, engine=engine):
            nonlocal shared
            found = real(request)
            writing = engine.scheduler.requests.get("writer")
            shared += bool(found[1]) and request.request_id == "reader" and writing.num_computed_tokens < found[1]
            return found

        engine.scheduler.kv_cache_manager.get_computed_blocks = counted
        engine.run()
        assert engine.wrong() == {}, case
    assert shared, "no request read a block of its own step"


def test_order_of_rows(make_engine) -> None:
    from types import SimpleNamespace

    from vllm_gaudi.runtime import prefill_order

    class Batch:
        req_ids = ["decode", "c", "a", "b"]  # noqa: RUF012
        num_reqs = 4

        @property
        def req_id_to_index(self):
            return {name: i for i, name in enumerate(self.req_ids)}

        def swap_states(self, i, j):
            self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]

    runner = SimpleNamespace(input_batch=Batch(), _is_prompt=lambda row, output: row > 0)
    prefill_order.sort_prefills(runner, SimpleNamespace(num_scheduled_tokens={"a": 3, "decode": 1, "b": 4, "c": 5}))
    assert runner.input_batch.req_ids == ["decode", "a", "b", "c"]
