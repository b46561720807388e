# SPDX-License-Identifier: Apache-2.0
"""Sampling settings on the rows they belong to.

Upstream samples prefills and decodes in separate calls whose row i is not row i of the persistent batch, pads
a call by repeating its first request, reorders the batch without refreshing what it copied to the device, and copies
nothing for a request whose first step in the batch samples no token of it. Its mask of `allowed_token_ids` does not
survive a swap of rows, and stays in a row whose request moved up.
Seeds, `bad_words`, `allowed_token_ids` and the logits processors (`min_tokens`, `logit_bias`, `min_p`, custom ones)
must follow.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from vllm_gaudi.runtime.logit_rows import is_incomplete


def order_changed(runner: Any, scheduler_output: Any, batch_changed: bool) -> bool:
    """Whether the device copies of the sampling settings are stale: the batch changed or was reordered.

    A sampling call copies the settings of its own rows, and without async scheduling the chunks of a prompt but its
    last are in none. So the copies stay stale until every row has been in a call, which `apply` notes.

    Called once per step, when the order of the batch is final; remembers the step for `apply`.
    """
    runner.__dict__["_frontier_step"] = scheduler_output
    order = tuple(runner.input_batch.req_ids)
    reordered = order != runner.__dict__.get("_frontier_order")
    runner.__dict__["_frontier_order"] = order
    if reordered:
        runner.input_batch._invalidate_prompt_token_ids_cache()
    if batch_changed or reordered:
        runner.__dict__["_frontier_not_copied"] = set(order)
    return bool(runner.__dict__["_frontier_not_copied"])


def _needs_processors(params: Any, custom: bool) -> bool:
    return bool(custom or params.min_tokens or params.logit_bias or params.min_p)


class _Processors:
    """Logits processors whose batch is one sampling call, rebuilt when the call's rows change."""

    def __init__(self, runner: Any, capacity: int):
        from vllm.v1.sample.logits_processor import build_logitsprocs

        config = copy.copy(runner.vllm_config)
        config.scheduler_config = copy.copy(config.scheduler_config)
        config.scheduler_config.max_num_seqs = capacity
        custom = getattr(config.model_config, "logits_processors", None) or ()
        self.capacity = capacity
        self.custom = bool(custom)
        self.processors = build_logitsprocs(config, runner.device, runner.pin_memory, False, custom)
        self._size = 0
        self._histories: list[list[int]] = []

    def select(self, states: list[Any], size: int) -> None:
        """Make row i the i-th of `states` in a call of `size` rows (the rest is padding)."""
        from vllm.v1.sample.logits_processor import BatchUpdate

        # A request is told by its history list: a processor holds it, and a resumed request gets a new one. The
        # lists themselves are kept: by address, a new request could pass for a finished one and get its settings.
        histories = [s.output_token_ids for s in states]
        same = (
            size == self._size
            and len(histories) == len(self._histories)
            and all(new is old for new, old in zip(histories, self._histories, strict=True))
        )
        update = None
        if not same:
            removed = range(len(self._histories))
            added = [(i, s.sampling_params, s.prompt_token_ids, s.output_token_ids) for i, s in enumerate(states)]
            for processor in self.processors.all:
                processor.update_state(BatchUpdate(batch_size=size, removed=list(removed), added=[], moved=[]))
            update = BatchUpdate(batch_size=size, removed=[], added=added, moved=[])
            self._size, self._histories = size, histories
        for processor in self.processors.all:
            processor.update_state(update)


def apply(runner: Any, metadata: Any, rows: list[tuple[str, list[int]]]) -> None:
    """Correct `metadata` for a call whose row i samples for `rows[i]`.

    Args:
        metadata: SamplingMetadata built by upstream for the call, edited in place.
        rows: request id and history per row; padding repeats the first row at the end.
    """
    batch = runner.input_batch
    real = list(dict.fromkeys(req_id for req_id, _ in rows))
    runner.__dict__.get("_frontier_not_copied", set()).difference_update(real)
    indices = [batch.req_id_to_index[req_id] for req_id in real]
    if batch.bad_words_token_ids:
        metadata.bad_words_token_ids = {
            i: batch.bad_words_token_ids[index] for i, index in enumerate(indices) if index in batch.bad_words_token_ids
        }
    if metadata.generators:
        # A row that yields no token must not advance its request's generator.
        step = runner.__dict__.get("_frontier_step")
        metadata.generators = {
            i: generator
            for i, generator in metadata.generators.items()
            if i < len(real)
            and not (
                step is not None
                and real[i] in step.num_scheduled_tokens
                and is_incomplete(batch, step, indices[i], real[i])
            )
        }
    _apply_allowed_tokens(runner, metadata, real, len(rows))
    _apply_processors(runner, metadata, real, len(rows))


def _apply_allowed_tokens(runner: Any, metadata: Any, real: list[str], size: int) -> None:
    """Make the mask of the call, bool [size, vocabulary], from its requests; True is not allowed, padding is free."""
    if metadata.allowed_token_ids_mask is None:
        return
    parameters = [runner.requests[req_id].sampling_params for req_id in real]
    # Requests are told by their parameters, which are kept: see `_Processors.select`.
    known_size, known, mask = runner.__dict__.get("_frontier_allowed", (0, [], None))
    same = size == known_size and len(known) == len(parameters)
    if not same or any(new is not old for new, old in zip(parameters, known, strict=True)):
        rows = torch.zeros(metadata.allowed_token_ids_mask.shape, dtype=torch.bool)
        for row, one in enumerate(parameters):
            if one is not None and one.allowed_token_ids:
                rows[row] = True
                rows[row, one.allowed_token_ids] = False
        mask = rows.to(runner.device, non_blocking=True)
        runner.__dict__["_frontier_allowed"] = (size, parameters, mask)
    metadata.allowed_token_ids_mask = mask


def _apply_processors(runner: Any, metadata: Any, real: list[str], size: int) -> None:
    own = runner.__dict__.get("_frontier_processors")
    custom = own.custom if own else bool(getattr(runner.vllm_config.model_config, "logits_processors", None))
    states = [runner.requests[req_id] for req_id in real]
    if not any(s.sampling_params is not None and _needs_processors(s.sampling_params, custom) for s in states):
        return
    if own is None or own.capacity < size:
        own = _Processors(runner, max(size, runner.vllm_config.scheduler_config.max_num_seqs))
        runner.__dict__["_frontier_processors"] = own
    own.select(states, size)
    metadata.logitsprocs = own.processors
