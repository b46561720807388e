# SPDX-License-Identifier: Apache-2.0
"""Whether a constraint holds from the first token, where vLLM's servings do not tell the engine.

Left alone, the engine asks the reasoning parser whether the prompt ended the reasoning, and holds nothing until some
token does. A prompt that never began a message of the assistant has no such token to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.parser.turn_grammar.prompt_state import prompt_state
from vllm.parser.turn_grammar.wire_format import turn_format_named
from vllm.parser.unified import adjusts_always


def completion_reasoning_ended(
    parser_cls: type | None, tokenizer: Any, engine_input: Mapping[str, Any], params: Any
) -> bool | None:
    """`reasoning_ended` of a plain completion: True unless its prompt stops inside the assistant's thinking.

    Args:
        parser_cls: the selected parser; others than the unified ones keep vLLM's answer.
        engine_input: the prompt (`prompt_token_ids`, absent where it is embeddings).
        params: the sampling parameters; without a constraint nothing depends on the answer.
    """
    if params.structured_outputs is None or parser_cls is None or not adjusts_always(parser_cls):
        return None
    ids = engine_input.get("prompt_token_ids")
    turn = turn_format_named(parser_cls.format_name, tokenizer)
    if ids is None or turn is None:
        return True
    return None if prompt_state(turn, parser_cls(tokenizer).prompt_text(ids)) == "open_thinking" else True
