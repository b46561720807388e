# SPDX-License-Identifier: Apache-2.0
"""Requests that the Messages API cannot serve: the client's errors, as the chat API reports them."""

from __future__ import annotations

from vllm.entrypoints.openai.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.error_response import create_error_response


def refusal(error: Exception) -> ErrorResponse | None:
    """The answer to a request that raised `error`; None if the fault is the server's."""
    response = create_error_response(error)
    return response if response.error.code < 500 else None
