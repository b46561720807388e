# SPDX-License-Identifier: Apache-2.0
"""Requests that the Messages API cannot serve: the client's errors, as the chat API reports them."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse
from vllm.entrypoints.anthropic.protocol import AnthropicError, AnthropicErrorResponse
from vllm.entrypoints.openai.engine.protocol import ErrorInfo, ErrorResponse
from vllm.entrypoints.serve.utils.error_response import create_error_response

# The error types of the Messages API, by status.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def refusal(error: Exception) -> ErrorResponse | None:
    """The answer to a request that raised `error`; None if the fault is the server's."""
    response = create_error_response(error)
    return response if response.error.code < 500 else None


def error_type(error: ErrorInfo) -> str:
    """The Messages API's name for an error of the chat API."""
    return _TYPES.get(error.code, "api_error" if error.code >= 500 else "invalid_request_error")


def invalid_body(raw_request: Any, response: ErrorResponse) -> JSONResponse | None:
    """The answer to a body that no request can be read from, in the form of the Messages API; None on other routes."""
    if not raw_request.url.path.startswith("/v1/messages"):
        return None
    error = AnthropicError(type=error_type(response.error), message=response.error.message)
    return JSONResponse(AnthropicErrorResponse(error=error).model_dump(), status_code=response.error.code)
