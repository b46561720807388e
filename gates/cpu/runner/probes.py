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
