# SPDX-License-Identifier: Apache-2.0
"""vLLM's counter of parsed deltas, raised once for a whole stream."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser import metrics


def record_deltas(request: Any, calls: int, others: int) -> None:
    """Add `calls` deltas with tool calls and `others` without to the counter, if the server has metrics."""
    counter = metrics._tool_call_parser_invocations
    if counter is None:
        return
    kinds = metrics.RequestType
    request_type = kinds.RESPONSES if isinstance(request, ResponsesRequest) else kinds.CHAT_COMPLETIONS
    for outcome, count in ((metrics.ToolCallOutcome.TOOL_CALL, calls), (metrics.ToolCallOutcome.NO_TOOL_CALL, others)):
        if count:
            counter.labels(
                model_name=metrics._model_name,
                mode="streaming",
                outcome=outcome.value,
                request_type=request_type.value,
            ).inc(count)
