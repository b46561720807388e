# SPDX-License-Identifier: Apache-2.0
"""Hugging Face as the judge of served tokens: how far each generated token is from the best one."""

from __future__ import annotations

from pathlib import Path


def deficits(
    checkpoint: Path, prompts: list[list[int]], answers: list[list[int]], penalties: list[float] | None = None
) -> list[float]:
    """Largest fp32 logit deficit of each answer's greedy tokens, teacher-forced; 0 means every token is the argmax.

    `penalties`: repetition penalty of each prompt, applied as transformers does; none if left out.

    bf16 rounding decides near-ties either way, so tokens are not compared; logits spread by about 1.2.
    Eager attention, because the plug-in replaces transformers' sdpa function in every process that imports it: the
    judge would then share code with what it judges.
    """
    import torch
    from transformers import AutoModelForCausalLM, RepetitionPenaltyLogitsProcessor

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    with torch.inference_mode():
        for prompt, answer, penalty in zip(prompts, answers, penalties or [1.0] * len(prompts), strict=True):
            tokens = torch.tensor([prompt + answer])
            logits = model(tokens).logits[0, len(prompt) - 1 : -1]
            if penalty != 1.0:
                penalise = RepetitionPenaltyLogitsProcessor(penalty)
                rows = [penalise(tokens[:, : len(prompt) + i], row[None]) for i, row in enumerate(logits)]
                logits = torch.cat(rows)
            chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
            found.append(float((logits.max(-1).values - chosen).max()))
    return found
