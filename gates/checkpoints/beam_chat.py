# SPDX-License-Identifier: Apache-2.0
"""Tokenizer, chat template and response template of the test checkpoints.

Byte-level BPE with the markers of Beam's message format as added tokens. The
closer of a parameter is one token that starts with its newline, as published.
"""

import json
from pathlib import Path

CONTROL = ("<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>",
           "<|return|>")  # fmt: skip
STRUCTURE = ('<rfl:parameter name="', "\n</rfl:parameter>")
STOP = ("<|return|>", "<|call|>")
WORDS = ("assistant", "analysis", "final", "user", "system", "tool", "xml", " to", "=", "functions", " the", " of",
         " and", " in", " is", " city", "Paris", "weather", "get_weather", "days", "hello", " world")  # fmt: skip

RESPONSE_TEMPLATE = {
    "version": 1,
    "defaults": {"role": "assistant"},
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {
            "open": "<|channel|>analysis<|message|>",
            "close": "<|end|><|start|>assistant",
            "content": "text",
            "content_args": {"strip": False},
        },
        "content": {
            "open": "<|channel|>final<|message|>",
            "close": ["<|return|>", "<|end|>", "<|call|>"],
            "content": "text",
            "content_args": {"strip": False},
        },
        "tool_calls": {
            "open_pattern": r" to=(?P<name>[^\s<]+)<\|channel\|>analysis <\|constrain\|>xml<\|message\|>",
            "close": ["<|call|>", "<|end|><|start|>assistant"],
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r'<rfl:parameter name="(?P<key>[^"]+)">\n(?P<value>.*?)\n'
                r'(?:</rfl:parameter>|(?=<rfl:parameter name="))'
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}

CHAT_TEMPLATE = """\
{%- macro value(v) -%}{{ v if v is string else v | tojson }}{%- endmacro -%}
<|start|>system<|message|>Reasoning effort: {{ reasoning_effort | default('high', true) }}
{%- if tools %}
{%- for tool in tools %}
{{ tool['function'] | tojson }}
{%- endfor %}
{%- endif %}<|end|>
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- set reasoning = message.reasoning_content or message.reasoning -%}
{%- if not reasoning -%}
{{ raise_exception('Beam needs reasoning_content on every earlier assistant message') }}
{%- endif -%}
<|start|>assistant<|channel|>analysis<|message|>{{ reasoning }}<|end|>
{%- if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{%- if call['function'].arguments is not mapping -%}
{{ raise_exception('Beam needs tool call arguments as an object, not as text') }}
{%- endif -%}
<|start|>assistant to={{ call['function'].name }}<|channel|>analysis <|constrain|>xml<|message|>
{%- for key, argument in call['function'].arguments.items() -%}
{{ '<rfl:parameter name="' ~ key ~ '">\\n' ~ value(argument) ~ '\\n</rfl:parameter>' }}
{%- endfor -%}
{{ '<|call|>' if loop.last else '<|end|>' }}
{%- endfor -%}
{%- else -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|return|>
{%- endif -%}
{%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """(token to id, merges) of the byte alphabet and `WORDS`, built left to right."""
    alphabet = byte_alphabet()
    tokens = {piece: index for index, piece in enumerate(alphabet)}
    merges: list[str] = []
    for word in WORDS:
        pieces = [alphabet[byte] for byte in word.encode()]
        done = pieces[0]
        for piece in pieces[1:]:
            merge = f"{done} {piece}"
            done += piece
            if merge not in merges:
                merges.append(merge)
                tokens.setdefault(done, len(tokens))
    return tokens, merges


def special_ids() -> dict[str, int]:
    """Ids of the markers, right after the byte-level vocabulary."""
    first = len(vocabulary()[0])
    return {token: first + index for index, token in enumerate((*CONTROL, *STRUCTURE))}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer, its config with both templates, and generation_config into `folder`."""
    tokens, merges = vocabulary()
    ids = special_ids()
    added = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": token in CONTROL}
        for token in ids
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": tokens, "merges": merges, "ignore_merges": False},
            },
            ensure_ascii=False,
        )
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
        "response_template": RESPONSE_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    generation = {"eos_token_id": [ids[token] for token in STOP], "pad_token_id": ids["<|endoftext|>"],
                  "temperature": 0.7, "top_p": 0.99, "do_sample": True}  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
