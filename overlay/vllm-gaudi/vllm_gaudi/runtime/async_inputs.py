# SPDX-License-Identifier: Apache-2.0
"""What each row is fed when the host schedules ahead of the device.

A decode row takes the token the device sampled in the previous step if and only if its request had a valid
row there; every other row takes the token the host knows.
"""

from __future__ import annotations

from typing import Any

from vllm_gaudi.runtime import output_history, prompt_logprobs


def begin_step(runner: Any, scheduler_output: Any) -> set[str]:
    """Settle requests that leave the batch or were preempted since their last step; called before it is updated.

    A request may be preempted and resumed between two consecutive steps (a prefix cache reset does that): it
    is then still in the persistent batch with blocks it no longer owns, its last sampled row must not be fed
    again, and output the scheduler discarded must leave its history.

    Returns:
        Ids to take out of the persistent batch although they are scheduled; they are added again from their
        new state.
    """
    cached = scheduler_output.scheduled_cached_reqs
    batch = runner.input_batch
    resumed = set(getattr(cached, "resumed_req_ids", ()))
    for req_id, kept in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        state = runner.requests[req_id]
        if req_id in resumed:
            output_history.forget(runner, state)
            if batch.prev_req_id_to_index is not None:
                batch.prev_req_id_to_index.pop(req_id, None)
        if len(state.output_token_ids) > kept:
            output_history.forget(runner, state)
            del state.output_token_ids[kept:]
    again = resumed & batch.req_id_to_index.keys()
    if batch.in_progress_prompt_logprobs_cpu:
        prompt_logprobs.keep(
            runner, again | (batch.req_id_to_index.keys() - scheduler_output.num_scheduled_tokens.keys())
        )
    return again


def seed_input_ids(runner: Any, num_decodes: int, num_tokens: int) -> None:
    """Put the host's ids into the device buffer when some decode row was not sampled in the previous step.

    The rows that were are overwritten by upstream's `_prepare_input_ids`, which runs next. In the steady
    state (every row decoded in the previous step) nothing is copied.

    Args:
        num_decodes: rows of the decode batch.
        num_tokens: scheduled tokens of those rows, at the head of the buffer.
    """
    batch = runner.input_batch
    sampled = batch.prev_req_id_to_index if batch.prev_sampled_token_ids is not None else None
    if sampled and all(req_id in sampled for req_id in batch.req_ids[:num_decodes]):
        return
    # The host buffer is rewritten for the next step while this copy may still be queued: copy from a fresh tensor.
    runner.input_ids_hpu[:num_tokens].copy_(runner.input_ids_cpu[:num_tokens].clone(), non_blocking=True)
