# SPDX-License-Identifier: Apache-2.0
"""Items of a response that a limit or a stop string cut: their status says so, as a chat's finish reason does."""

from __future__ import annotations

from typing import Any

from vllm.parser.unified import cut_reason


def mark_cut(parser_cls: type | None, output: Any, request: Any, items: list[Any]) -> None:
    """Make the last of `items` incomplete if something cut it; no client should run such a call.

    The token limit cuts whatever was last. A stop string of the client's ends text as it asked, and cuts only a call.

    Args:
        output: the engine's last output of the response (`finish_reason`, `stop_reason`).
        request: the Responses request.
        items: output items in order, or the one that an event of the stream closes.
    """
    reason = cut_reason(parser_cls, output, request)
    if reason is None or not items:
        return
    last = items[-1]
    if getattr(last, "status", "") in (None, "completed") and (reason == "length" or last.type == "function_call"):
        last.status = "incomplete"


def mark_cut_event(parser_cls: type | None, context: Any, request: Any, event: Any) -> None:
    """`mark_cut` for the event that closes the last item of a streamed response."""
    if event.type == "response.output_item.done" and context.last_output is not None and context.last_output.outputs:
        mark_cut(parser_cls, context.last_output.outputs[0], request, [event.item])
