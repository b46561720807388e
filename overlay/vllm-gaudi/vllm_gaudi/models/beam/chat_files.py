# SPDX-License-Identifier: Apache-2.0
"""Checks of the files beside the weights: stop tokens and chat template."""

import hashlib

from vllm.config import ModelConfig

from vllm_gaudi.models.beam.inventory import BeamCheckpointError
from vllm_gaudi.models.config_values import shown

STOP_TOKENS = ("<|return|>", "<|call|>")
ROUND_TRIP = (
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "ask the tool",
        "reasoning": "ask the tool",
        "tool_calls": [
            {"id": "0", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "0", "name": "weather", "content": "sunny"},
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def check_chat_files(model_config: ModelConfig) -> str:
    """Check stop tokens and render one tool round trip; return a short hash of the template.

    Returns `none (no tokenizer)` when the server runs without one.

    Raises:
        BeamCheckpointError: a turn could not be ended, or the template does not render.
    """
    if model_config.skip_tokenizer_init:
        return "none (no tokenizer)"
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    _check_stops(tokenizer, model_config)
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return "none"
    try:
        text = tokenizer.apply_chat_template(list(ROUND_TRIP), tools=[TOOL], tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise BeamCheckpointError(f"chat template: cannot render a tool round trip ({error})") from error
    lost = [word for word in ("ask the tool", "weather", "Paris", "sunny") if word not in text]
    if lost:
        raise BeamCheckpointError(f"chat template: drops {lost} of a tool round trip; take the published template")
    return hashlib.sha256(template.encode()).hexdigest()[:12]


def _check_stops(tokenizer, model_config: ModelConfig) -> None:
    generation = model_config.try_get_generation_config().get("eos_token_id")
    ids = generation if isinstance(generation, list) else [generation]
    if generation is not None and not all(type(entry) is int for entry in ids):
        raise BeamCheckpointError(
            f"generation_config.json: eos_token_id must be a token id or a list of them, found {shown(generation)}; "
            "take the published file"
        )
    stops = {*ids, tokenizer.eos_token_id}
    vocabulary = tokenizer.get_vocab()
    for token in STOP_TOKENS:
        if token not in vocabulary:
            raise BeamCheckpointError(f"tokenizer: has no token {token}; it is not Beam's")
        if vocabulary[token] not in stops:
            raise BeamCheckpointError(
                f"generation_config.json: eos_token_id {shown(generation)} lacks {token} ({vocabulary[token]}), "
                "so turns would not end there; take the published file"
            )
