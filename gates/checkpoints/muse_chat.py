# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and chat template of the Muse test checkpoints: messages to recipients, calls as invoke tags.

The published template was not seen. This one takes what the front end prepares for it: `reasoning_strength`, earlier
reasoning, one message a call, tools with description and parameters.
"""

from __future__ import annotations

from pathlib import Path

from gates.checkpoints import chat_files

CONTROL = ("<|end_of_text|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
STRUCTURE = ("</atem:parameter>\n", "</atem:invoke>\n</atem:function_calls>",
             '<atem:function_calls>\n<atem:invoke name="', '<atem:parameter name="')  # fmt: skip
STOP = ("<|eot|>", "<|end_of_text|>")
MARKERS = chat_files.Markers(CONTROL, STRUCTURE, STOP, "<|eot|>", "<|end_of_text|>")

CHAT_TEMPLATE = """\
{%- macro value(v) -%}{{ v if v is string else v | tojson }}{%- endmacro -%}
<|start|>system<|message|>Reasoning strength: {{ reasoning_strength | default('high', true) }}
{%- for tool in tools or [] %}
{{ tool['function'] | tojson }}
{%- endfor %}<|eot|>
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- set reasoning = message.reasoning_content or message.reasoning -%}
{%- if reasoning -%}
<|start|>assistant to=self<|message|>{{ reasoning }}<|eom|>
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if call['function'].arguments is not mapping -%}
{{ raise_exception('Muse needs tool call arguments as an object, not as text') }}
{%- endif -%}
{%- set given = call['function'].name -%}
{%- set name = given if '.' in given else given ~ '.' ~ given -%}
<|start|>assistant to={{ name }}<|message|>{{ '<atem:function_calls>\\n<atem:invoke name="' ~ name ~ '">\\n' }}
{%- for key, argument in call['function'].arguments.items() -%}
{{ '<atem:parameter name="' ~ key ~ '">' ~ value(argument) ~ '</atem:parameter>\\n' }}
{%- endfor -%}
{{ '</atem:invoke>\\n</atem:function_calls>' ~ ('<|eot|>' if loop.last else '<|eom|>') }}
{%- else -%}
<|start|>assistant to=user<|message|>{{ message.content }}<|eot|>
{%- endfor -%}
{%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|eot|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer, its config with the template, and generation_config into `folder`."""
    chat_files.write(folder, MARKERS, CHAT_TEMPLATE, {"temperature": 0.7, "top_p": 0.99, "do_sample": True})
