# SPDX-License-Identifier: Apache-2.0
"""A small byte-level BPE tokenizer with a ChatML template, made on the spot: no download, covers every byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
# Merges are learnt from these lines, so that JSON and tool calls of the gates take few tokens.
_TEXT = [
    '{"name": "weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    '{"type": "object", "properties": {"answer": {"type": "string"}, "score": {"type": "integer"}}, "required": []}',
    "The quick brown fox jumps over the lazy dog while the model answers the question of the user.",
    "You are a helpful assistant. Call the function with its arguments, or answer in plain words.",
    "Every request waits in a queue until the scheduler finds room for its prompt; then tokens stream back in order.",
    "Paris is the capital of France, Berlin of Germany, Rome of Italy, Madrid of Spain and Lisbon of Portugal.",
    "one two three four five six seven eight nine ten 0 1 2 3 4 5 6 7 8 9 true false null",
] * 4
CHAT_TEMPLATE = """{%- if tools %}<|im_start|>system
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{%- endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build() -> Any:
    """A `tokenizers.Tokenizer` of exactly `VOCABULARY` entries; special tokens come first, from id 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise RuntimeError(
            f"tokenizer has {tokenizer.get_vocab_size()} entries, expected {VOCABULARY}: extend its text"
        )
    return tokenizer


def blank_ids() -> list[str]:
    """Ids, as the OpenAI API writes them, of the tokens that are nothing but white space."""
    tokenizer = build()
    texts = ((i, tokenizer.decode([i], skip_special_tokens=False)) for i in range(VOCABULARY))
    return [str(i) for i, text in texts if text and not text.strip()]


def save(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template into `folder`."""
    build().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
