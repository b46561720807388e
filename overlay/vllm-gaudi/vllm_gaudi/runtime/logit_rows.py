# SPDX-License-Identifier: Apache-2.0
"""One row of logits per request and step, and which of them produce a token.

The scheduler appends at most one token per request and step (speculative decoding aside), and only when the
step completes everything it knows of the request. The runner must agree on both, also for a request that was
preempted and resumes on cached prefix blocks.
"""

from __future__ import annotations

from typing import Any

from vllm_gaudi.runtime import prompt_logprobs


def prefill_tokens(request: Any, known: int) -> int:
    """Tokens `request` has to prefill before it decodes again, when it is (re-)added to the batch.

    Upstream counts output generated before a preemption as prompt only if nothing of it is cached. With a
    prefix hit the same is true unless all but the last token is cached, when the request simply decodes on.

    Args:
        known: upstream's value.
    """
    total = request.num_prompt_tokens + len(request.output_token_ids)
    if 0 < request.num_computed_tokens < total - 1:
        return total
    return known


def count_output_as_prompt(batch: Any, request: Any) -> None:
    """Correct what the batch notes of a request that was just (re-)added, see `prefill_tokens` and `settle`."""
    prompt_logprobs.settle(batch, request)
    row = batch.req_id_to_index[request.req_id]
    batch.num_prompt_tokens[row] = prefill_tokens(request, int(batch.num_prompt_tokens[row]))


def one_logit(count: int) -> int:
    """At most one row of logits per prefill: only the last position is sampled."""
    return min(int(count), 1)


def discard_incomplete(runner: Any, scheduler_output: Any, sampled: list[list[int]]) -> None:
    """Drop the tokens of prefills that this step did not complete; sync scheduling only.

    Structured output needs one row of logits per request, so an incomplete chunk is sampled like the rest.
    Async scheduling already drops those rows; without it the token would be returned as output.

    Args:
        sampled: token ids per batch row, edited in place.
    """
    batch = runner.input_batch
    for row, req_id in enumerate(batch.req_ids):
        if row < len(sampled) and sampled[row] and is_incomplete(batch, scheduler_output, row, req_id):
            sampled[row] = []


def is_incomplete(batch: Any, scheduler_output: Any, row: int, req_id: str) -> bool:
    """Whether the step leaves part of the request's prefill for later."""
    done = int(batch.num_computed_tokens_cpu[row]) + scheduler_output.num_scheduled_tokens[req_id]
    return done < int(batch.num_prompt_tokens[row])
