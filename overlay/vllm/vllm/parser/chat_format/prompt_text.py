# SPDX-License-Identifier: Apache-2.0
"""The end of a prompt as text. A prompt may have a million tokens; only its last message matters to a parser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_FIRST_TAIL = 64


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Text of `token_ids` with special tokens, and nothing added between them."""
    ids = list(token_ids)
    try:
        return tokenizer.decode(
            ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )
    except TypeError:
        # Tokenizers outside transformers take fewer options.
        return tokenizer.decode(ids, skip_special_tokens=False)


def tail_with(
    tokenizer: Any, token_ids: Sequence[int], has_anchor: Callable[[str], bool], decoder: Callable[..., str] = decode
) -> str:
    """The shortest doubling tail of the prompt's text that holds an anchor; the whole text if none does. Decodes at
    most twice the tokens of the tail."""
    size = _FIRST_TAIL
    while size < len(token_ids):
        text = decoder(tokenizer, token_ids[len(token_ids) - size :])
        if has_anchor(text):
            return text
        size *= 2
    return decoder(tokenizer, token_ids)
