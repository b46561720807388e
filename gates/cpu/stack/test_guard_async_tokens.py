# SPDX-License-Identifier: Apache-2.0
"""Guard of the async-token patch: the real scheduler class and the real Request of vLLM, no engine."""

from __future__ import annotations

import pytest


@pytest.fixture
def scheduler():
    from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler

    return HPUAsyncScheduler.__new__(HPUAsyncScheduler)


@pytest.fixture
def request_of_vllm():
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    def make(placeholders: int, discard: int) -> Request:
        request = Request("r", [1, 2, 3], SamplingParams(max_tokens=8), None)
        request.num_output_placeholders = placeholders
        request.async_tokens_to_discard = discard
        return request

    return make


@pytest.mark.parametrize("discard", [0, 1, 3])
def test_token_without_placeholder_is_dropped(scheduler, request_of_vllm, discard: int) -> None:
    request = request_of_vllm(0, discard)
    assert scheduler._update_request_with_output(request, [7]) == ([], False)
    assert request.num_output_tokens == 0
    assert request.async_tokens_to_discard == max(0, discard - 1), "drained by one frame, so no valid token is lost"


def test_no_token_is_left_to_vllm(scheduler, request_of_vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    calls = []
    monkeypatch.setattr(
        AsyncScheduler, "_update_request_with_output", lambda self, request, ids: calls.append(ids) or (ids, False)
    )
    for placeholders, ids in ((1, [7]), (0, [])):
        scheduler._update_request_with_output(request_of_vllm(placeholders, 0), ids)
    assert calls == [[7], []], "a token that was waited for, and a step without one, are vLLM's business"
