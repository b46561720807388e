# SPDX-License-Identifier: Apache-2.0
"""Output tokens a request's sampling depends on, kept complete under async scheduling.

With async scheduling the host learns a sampled token only after it has launched the next step, and upstream
never writes it to the request's `output_token_ids`, so penalties, `min_tokens` and `bad_words` see an empty
history. Here the tokens of a step are copied to the host in the background and written just before the next
sampling, and only if a request in the batch needs its history.
"""

from __future__ import annotations

from typing import Any

import torch


def needs_history(params: Any, custom_processors: bool = False) -> bool:
    """Whether sampling with `params` reads the tokens generated so far."""
    if params is None:
        return False
    return bool(
        custom_processors
        or params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.min_tokens
        or params.bad_words_token_ids
    )


def _has_custom_processors(runner: Any) -> bool:
    return bool(getattr(runner.vllm_config.model_config, "logits_processors", None))


class _Step:
    """Sampled tokens of one step on their way to the host, with the histories they belong to."""

    def __init__(self, rows: list[tuple[Any, list[int], int, int]], tokens: torch.Tensor, stream: Any):
        self.rows = rows
        self._device_tokens = tokens
        self._event = None
        if stream is None:
            self._host_tokens = tokens.cpu()
            return
        self._event = torch.hpu.Event()
        main_stream = torch.hpu.current_stream()
        with torch.hpu.stream(stream):
            stream.wait_stream(main_stream)
            self._host_tokens = tokens.to("cpu", non_blocking=True)
            self._event.record()

    def tokens(self) -> list[int]:
        """Sampled token per row; waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
        return self._host_tokens.tolist()


def note_sampled(runner: Any, sampled: torch.Tensor) -> None:
    """Remember a step's valid rows; called after `prev_req_id_to_index` was set.

    Args:
        sampled: int tensor [rows, 1] or [rows] on the device, one row per request in batch order.
    """
    custom = _has_custom_processors(runner)
    rows = []
    for req_id, row in runner.input_batch.prev_req_id_to_index.items():
        state = runner.requests[req_id]
        if needs_history(state.sampling_params, custom):
            history = state.output_token_ids
            rows.append((state, history, len(history), row))
    if rows:
        steps = runner.__dict__.setdefault("_frontier_history", [])
        steps.append(_Step(rows, sampled.flatten(), getattr(runner, "async_output_copy_stream", None)))


def fill(runner: Any) -> None:
    """Write the tokens of earlier steps into the histories; called before sampling metadata is built.

    A history that was replaced since (the request was resumed with the scheduler's list) already holds the
    token, or the scheduler discarded it; both are recognised by the list and its length.
    """
    steps = runner.__dict__.get("_frontier_history")
    if not steps:
        return
    for step in steps:
        tokens = step.tokens()
        for state, history, length, row in step.rows:
            if state.output_token_ids is history and len(history) == length:
                history.append(tokens[row])
    steps.clear()


def forget(runner: Any, state: Any) -> None:
    """Drop tokens on their way to `state`, whose history is about to be replaced or cut."""
    for step in runner.__dict__.get("_frontier_history", ()):
        step.rows = [row for row in step.rows if row[0] is not state]
