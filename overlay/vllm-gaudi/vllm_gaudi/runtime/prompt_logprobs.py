# SPDX-License-Identifier: Apache-2.0
"""Prompt log-probabilities in chunks of rows.

fp32 log-softmax over a whole 4,096-token chunk of a 202,048-word vocabulary is 3.1 GiB per tensor, with
several alive at once; 256 rows are 0.2 GiB.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_gaudi.runtime import settings


def settle(batch: Any, request: Any) -> None:
    """Correct what the batch notes of a request that was just (re-)added.

    Upstream takes -1, every token of the vocabulary, for a count. And it scores the prompt again when a request
    resumes after it returned tokens; the scheduler accepts scores with a request's first token alone.
    """
    for counts in (batch.num_logprobs, batch.num_prompt_logprobs):
        if counts.get(request.req_id) == -1:
            counts[request.req_id] = batch.vocab_size
    if request.output_token_ids:
        batch.num_prompt_logprobs.pop(request.req_id, None)


def in_chunks(
    runner: Any,
    hidden: torch.Tensor,
    num_logits: int,
    num_logprobs: int,
    prompt_token_ids: torch.Tensor,
    start_idx: int,
    target: Any,
) -> None:
    """Fill rows `start_idx : start_idx + num_logits` of `target`.

    Every chunk has the same shape (the last one repeats its last row), so one recipe serves all.

    Args:
        hidden: [tokens, hidden], the chunk's hidden states.
        prompt_token_ids: [prompt] ids on the device; row i is scored for id `start_idx + i + 1`.
        target: LogprobsTensors on the host for the whole prompt. The copies into it are not waited for here.
    """
    rows = min(settings.current().prompt_logprob_rows, runner.max_num_tokens)  # no chunk of a prompt is longer
    for first in range(0, num_logits, rows):
        count = min(rows, num_logits - first)
        index = torch.arange(first, first + rows, dtype=torch.int32).clamp_(max=num_logits - 1).to(hidden.device)
        logits = runner.model.compute_logits(hidden.index_select(0, index))
        ids = prompt_token_ids.index_select(0, index + (start_idx + 1))
        gathered = runner._gather_prompt_logprobs_hpu(runner.sampler.compute_logprobs(logits), num_logprobs, ids)
        place = slice(start_idx + first, start_idx + first + count)
        target.logprob_token_ids[place].copy_(gathered.logprob_token_ids[:count], non_blocking=True)
        target.logprobs[place].copy_(gathered.logprobs[:count], non_blocking=True)
        target.selected_token_ranks[place].copy_(gathered.selected_token_ranks[:count], non_blocking=True)
        _cut_graph()


def _cut_graph() -> None:
    import habana_frameworks.torch as htorch

    htorch.core.mark_step()
