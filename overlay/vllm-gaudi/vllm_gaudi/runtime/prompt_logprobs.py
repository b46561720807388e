# SPDX-License-Identifier: Apache-2.0
"""Prompt log-probabilities in chunks of rows, complete also for a prompt that is not read in at one go.

fp32 log-softmax over a whole 4,096-token chunk of a 202,048-word vocabulary is 3.1 GiB per tensor, with
several alive at once; 256 rows are 0.2 GiB.

Upstream keeps the rows of a half-read prompt in the persistent batch, which forgets them when the request sits out a
step, and what a request then returns for them is whatever was in memory. Here the request keeps them meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_gaudi.runtime import settings

_KEPT = "_frontier_prompt_scores"


def keep(runner: Any, leaving: set[str]) -> None:
    """Note the scores of half-read prompts on the requests that are about to leave the persistent batch."""
    in_progress = runner.input_batch.in_progress_prompt_logprobs_cpu
    for req_id in leaving & in_progress.keys():
        runner.requests[req_id].__dict__[_KEPT] = in_progress[req_id]


def settle(batch: Any, request: Any) -> None:
    """Correct what the batch notes of a request that was just (re-)added.

    Upstream takes -1, every token of the vocabulary, for a count. And it scores the prompt again when a request
    resumes after it returned tokens; the scheduler accepts scores with a request's first token alone. A prompt that
    is still being read in gets back the scores it has.
    """
    req_id = request.req_id
    for counts in (batch.num_logprobs, batch.num_prompt_logprobs):
        if counts.get(req_id) == -1:
            counts[req_id] = batch.vocab_size
    kept = request.__dict__.pop(_KEPT, None)
    count = batch.num_prompt_logprobs.get(req_id)
    if count is None or request.prompt_token_ids is None:
        return
    length = len(request.prompt_token_ids)
    if request.output_token_ids or request.num_computed_tokens >= length:
        del batch.num_prompt_logprobs[req_id]
        return
    batch.in_progress_prompt_logprobs_cpu[req_id] = _unscored(length - 1, count + 1) if kept is None else kept


def _unscored(rows: int, columns: int) -> Any:
    """Host tensors [rows, columns] in which every token is impossible.

    A row stays so if its token comes from the prefix cache, which a request has to ask for by name
    (`skip_reading_prefix_cache=False`); memory that was not written must not reach a client.
    """
    from vllm.v1.outputs import LogprobsTensors

    tensors = LogprobsTensors.empty_cpu(rows, columns)
    tensors.logprob_token_ids.zero_()
    tensors.logprobs.fill_(float("-inf"))
    tensors.selected_token_ranks.zero_()
    return tensors


def hidden_of(hidden: torch.Tensor, token_ids: torch.Tensor, row: int) -> torch.Tensor:
    """Hidden states [seq, hidden] of one prompt of a prefill.

    Args:
        hidden: [batch, seq, hidden], or [batch * seq, hidden] of a model that is fed flat ids.
        token_ids: [batch, seq].
    """
    return hidden.view(*token_ids.shape, -1)[row]


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
