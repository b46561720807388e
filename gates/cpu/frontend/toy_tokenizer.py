# SPDX-License-Identifier: Apache-2.0
"""Byte-level tokenizer of the recorded cases: one id a byte, one id a special token."""

from __future__ import annotations

import re


class ToyTokenizer:
    def __init__(self, special_tokens, response_template=None):
        self.special = {token: 256 + index for index, token in enumerate(special_tokens)}
        self._texts = {index: token for token, index in self.special.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self.special)) + ")")
        self.init_kwargs = {} if response_template is None else {"response_template": response_template}

    def get_vocab(self):
        return {**{f"<0x{byte:02X}>": byte for byte in range(256)}, **self.special}

    def encode(self, text, add_special_tokens=False):
        ids = []
        for part in self._split.split(text):
            ids += [self.special[part]] if part in self.special else list(part.encode())
        return ids

    def decode(self, ids, skip_special_tokens=False, **_):
        text, pending = [], bytearray()
        for token in ids:
            if token < 256:
                pending.append(token)
                continue
            text.append(pending.decode(errors="replace"))
            pending.clear()
            if not skip_special_tokens:
                text.append(self._texts[token])
        return "".join(text) + pending.decode(errors="replace")
