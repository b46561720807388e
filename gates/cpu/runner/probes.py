# SPDX-License-Identifier: Apache-2.0
"""Functions a served check calls inside the engine process (`run_engine(call=...)`)."""

from __future__ import annotations

from typing import Any


def counters(llm: Any) -> dict[str, float]:
    """Totals of vLLM's counters by name, e.g. `vllm:num_preemptions`."""
    totals: dict[str, float] = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        if value is not None:
            totals[metric.name] = totals.get(metric.name, 0.0) + value
    return totals


def cached_on_repeat(llm: Any) -> list[int]:
    """Tokens taken from the prefix cache by a prompt of 600 tokens, asked twice."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": [16 + (7 * i) % 400 for i in range(600)]}
    params = SamplingParams(max_tokens=2, temperature=0)
    return [llm.generate([prompt], params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
