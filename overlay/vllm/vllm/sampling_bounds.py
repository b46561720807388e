# SPDX-License-Identifier: Apache-2.0
"""Bounds of sampling parameters that need the model's vocabulary."""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError


def check_stop_ids(params: Any, model_config: Any) -> None:
    """Refuse stop ids that are no tokens: `min_tokens` masks each of them, in the engine, at its index.

    Raises:
        VLLMValidationError: an id is outside the vocabulary.
    """
    size = model_config.get_vocab_size()
    if outside := [token for token in params.stop_token_ids or () if not 0 <= token < size]:
        raise VLLMValidationError(
            f"stop_token_ids holds {outside[0]}, which is no token: send ids from 0 to {size - 1}",
            parameter="stop_token_ids",
        )
