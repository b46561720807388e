# SPDX-License-Identifier: Apache-2.0
"""Guard of the prefill-order patch: a prefix block is written before a request of the same step reads it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("asynchronous", [False, True])
def test_block_is_written_before_it_is_read(make_engine, asynchronous: bool) -> None:
    """A request takes the row a finished one left, ahead of the chunked prompt whose blocks it shares."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=48)
    prompt = [40 + j for j in range(60)]
    engine.add("first", [20, 21, 22], 2)
    engine.step()
    engine.add("writer", prompt, 6)
    engine.step()  # one decode token and 47 of the prompt: its third block of 16 lacks a token
    engine.add("reader", [*prompt[:48], 30, 31], 6)
    hits = []
    lookup = engine.scheduler.kv_cache_manager.get_computed_blocks

    def noted(request):
        found = lookup(request)
        hits.append((request.request_id, found[1], engine.scheduler.requests["writer"].num_computed_tokens))
        return found

    engine.scheduler.kv_cache_manager.get_computed_blocks = noted
    engine.run()
    assert hits == [("reader", 48, 47)], "the reader hits a block that this step completes"
    assert engine.wrong() == {}


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
