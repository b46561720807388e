# SPDX-License-Identifier: Apache-2.0
"""Guard of the prompt-logprobs patch: rows per call, and the same values as in one piece."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

VOCABULARY, HIDDEN = 1000, 16


class _Model:
    def __init__(self) -> None:
        self.weight = torch.randn(HIDDEN, VOCABULARY, generator=torch.Generator().manual_seed(0))
        self.rows: list[int] = []

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(hidden))
        # One row at a time: a matrix product may round differently for another number of rows.
        return torch.stack([row @ self.weight.to(hidden.device) for row in hidden])


def _collect(tokens: int, prompt: int, computed: int = 0, limit: int = 4096) -> tuple[_Model, object]:
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.sample.sampler import Sampler

    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    ids = torch.randint(0, VOCABULARY, (prompt,), generator=torch.Generator().manual_seed(1)).tolist()
    target = LogprobsTensors.empty_cpu(prompt - 1, 4)
    model = _Model()
    runner = SimpleNamespace(
        model=model,
        sampler=Sampler(),
        device="hpu",
        max_num_tokens=limit,
        requests={"r": SimpleNamespace(prompt_token_ids=ids, num_computed_tokens=computed)},
        input_batch=SimpleNamespace(num_prompt_logprobs={"r": 3}, in_progress_prompt_logprobs_cpu={"r": target}),
    )
    runner._gather_prompt_logprobs_hpu = HPUModelRunner._gather_prompt_logprobs_hpu.__get__(runner)
    hidden = torch.randn(1, tokens, HIDDEN, generator=torch.Generator().manual_seed(2)).to("hpu")
    HPUModelRunner._get_prompt_logprobs_dict(runner, {"r": hidden}, SimpleNamespace(num_scheduled_tokens={"r": tokens}))
    torch.hpu.synchronize()
    return model, (ids, hidden[0].cpu(), target)


@pytest.mark.parametrize("prompt", [2, 256, 257, 258, 600])
def test_rows_per_call(prompt: int) -> None:
    model, (ids, hidden, target) = _collect(prompt, prompt)
    assert set(model.rows) == {256}, "one shape, so one recipe"
    assert len(model.rows) == -(-(prompt - 1) // 256)
    rows = torch.log_softmax(torch.stack([h @ model.weight for h in hidden[: prompt - 1]]), dim=-1)
    next_ids = torch.tensor(ids[1:])
    top = rows.topk(3, dim=-1)
    assert torch.equal(target.logprobs[:, 1:], top.values)
    assert torch.equal(target.logprobs[:, 0], rows.gather(1, next_ids[:, None])[:, 0])
    assert torch.equal(target.logprob_token_ids[:, 0].long(), next_ids)
    assert torch.equal(target.logprob_token_ids[:, 1:].long(), top.indices)
    assert torch.equal(target.selected_token_ranks.long(), (rows >= target.logprobs[:, :1]).sum(-1))


def test_second_chunk_of_a_prompt() -> None:
    model, (ids, hidden, target) = _collect(300, 700, computed=300)
    assert set(model.rows) == {256}
    rows = torch.log_softmax(torch.stack([h @ model.weight for h in hidden]), dim=-1)
    assert torch.equal(target.logprobs[300:600, 0], rows.gather(1, torch.tensor(ids[301:601])[:, None])[:, 0])


def test_no_more_rows_than_a_chunk_has(settings) -> None:
    settings(PROMPT_LOGPROB_ROWS="1000000")
    model, _ = _collect(300, 700, limit=512)
    assert model.rows == [512]
