# SPDX-License-Identifier: Apache-2.0
"""Tokens that come back under async scheduling for a request that waits for none."""

from __future__ import annotations

from typing import Any


def spurious_async_token(request: Any, new_token_ids: list[int]) -> bool:
    """Whether the scheduler must drop `new_token_ids`: they came back with no output placeholder outstanding.

    Two sources: the runner sampled a row of a prompt chunk that was not the last, or the request was preempted while
    its output was in flight (`reset_prefix_cache`), which vLLM 0.26 counts in `async_tokens_to_discard`. The latter
    are drained here, one per returned frame as vLLM does itself: left standing, the count would swallow a valid token.
    """
    if not new_token_ids or request.num_output_placeholders != 0:
        return False
    if getattr(request, "async_tokens_to_discard", 0) > 0:
        request.async_tokens_to_discard -= 1
    return True
