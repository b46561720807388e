# SPDX-License-Identifier: Apache-2.0
"""What people paste with their server's command line and nobody should read."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"',}]+)"""
# Names that end in it: `--max-num-batched-tokens` and `--tokenizer` hold no secret, `--hf-token` and HF_TOKEN do.
_NAME = r"[\w-]*(?:key|token|secret|passw(?:or)?d|credentials?)"
_PATTERNS = (
    re.compile(rf"""(\b{_NAME}["']?\s*[:=]\s*){_VALUE}""", re.I),  # --name=..., NAME=..., {"name": "..."}
    re.compile(rf"(--?{_NAME}\s+)(?!-){_VALUE}(?:\s+(?!-){_VALUE})*", re.I),  # vLLM's --api-key takes several
    re.compile(r"(\bBearer\s+)[^\s\"']+", re.I),
    re.compile(r"(\w://)[^/\s@]+(?=@)"),  # a user and password in an address
    re.compile(r"()\b(?:sk-|hf_)\w[\w-]{6,}"),
)


def redacted(text: str) -> str:
    """Text of a command line with `[hidden]` in the place of keys, tokens and passwords."""
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
