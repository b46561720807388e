# SPDX-License-Identifier: Apache-2.0
"""Tokenizer, chat template and response template of the test checkpoints.

Byte-level BPE with the markers of Beam's message format as added tokens. The
closer of a parameter is one token that starts with its newline, as published.
"""

from pathlib import Path

from gates.checkpoints import chat_files

CONTROL = ("<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>",
           "<|return|>")  # fmt: skip
STRUCTURE = ('<rfl:parameter name="', "\n</rfl:parameter>")
STOP = ("<|return|>", "<|call|>")
MARKERS = chat_files.Markers(CONTROL, STRUCTURE, STOP, "<|return|>", "<|endoftext|>")

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


def special_ids() -> dict[str, int]:
    """Ids of the markers, right after the byte-level vocabulary."""
    return MARKERS.ids()


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer, its config with both templates, and generation_config into `folder`."""
    generation = {"temperature": 0.7, "top_p": 0.99, "do_sample": True}
    chat_files.write(folder, MARKERS, CHAT_TEMPLATE, generation, response_template=RESPONSE_TEMPLATE)
