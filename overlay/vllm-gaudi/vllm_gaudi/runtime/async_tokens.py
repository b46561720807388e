# SPDX-License-Identifier: Apache-2.0
"""Output that comes back under async scheduling for a request that waits for none."""

from __future__ import annotations

from typing import Any


def spurious_async_token(request: Any, new_token_ids: list[int]) -> bool:
    """Whether the scheduler must drop `new_token_ids`: they came back with no output placeholder outstanding.

    Two sources: the runner sampled a row of a prompt chunk that was not the last, or the request was preempted while
    its output was in flight (`reset_prefix_cache`), which vLLM 0.26 counts in `async_tokens_to_discard`. The latter
    are drained here, one per returned frame as vLLM does itself: left standing, the count would swallow a valid token.
    """
    if not new_token_ids or request.num_output_placeholders != 0:
        return False
    if getattr(request, "async_tokens_to_discard", 0) > 0:
        request.async_tokens_to_discard -= 1
    return True


def discard_scores(scheduler: Any, output: Any) -> None:
    """Drop the prompt log-probabilities of requests that `output` gives no token; before the scheduler takes it.

    A step that was in flight at a `reset_prefix_cache` of running requests is discarded with its tokens, and the
    prompt is scored again when the request resumes. vLLM takes scores without a token for an error and ends the
    engine core.

    Args:
        output: ModelRunnerOutput, edited in place.
    """
    for req_id in list(output.prompt_logprobs_dict):
        request = scheduler.requests.get(req_id)
        stale = request is not None and getattr(request, "async_tokens_to_discard", 0) > 0
        if request is None or stale or request.num_output_placeholders == 0:
            del output.prompt_logprobs_dict[req_id]
