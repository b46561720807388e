# SPDX-License-Identifier: Apache-2.0
"""Random turns that a grammar admits, drawn by walking the matcher's mask."""

from __future__ import annotations

import random

import xgrammar as xgr

MARKERS = {
    "beam": [
        "<|return|>",
        "<|call|>",
        "<|end|>",
        "<|start|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "\n</rfl:parameter>",
        '<rfl:parameter name="',
        "assistant",
        "analysis",
        "final",
        " to=",
    ],
    "muse": [
        "<|eot|>",
        "<|eom|>",
        "<|start|>",
        "<|message|>",
        "</atem:parameter>\n",
        '<atem:parameter name="',
        "</atem:invoke>\n</atem:function_calls>",
        "assistant",
        " to=user",
        " to=self",
        " to=",
    ],
}
# What a parser looks for beside the markers, as tokens of their own: a walk by bytes would hardly ever spell them.
KIN = {
    "beam": ["</rfl:parameter>", "<rfl:parameter", ">\n", " to=evil", "<|constrain|>xml", "<|channel|>analysis"],
    "muse": [
        "</atem:parameter>",
        "</atem:invoke>",
        "<atem:invoke",
        '<atem:invoke name="evil">',
        "<atem:parameter",
        "<atem:function_calls>",
        "</atem:function_calls>",
        "\n\n",
    ],
}
STOPS = {"beam": ("<|return|>", "<|call|>"), "muse": ("<|eot|>",)}
# Text is drawn from what is awkward: markup, quotes, escapes, line ends, and more than ASCII.
TEXT = [chr(code) for code in range(32, 127)] + [
    "\n",
    "\t",
    "\\n",
    "é",
    "日",
    "🎉",
    "</",
    "<|",
    "<rfl:",
    "<atem:",
    '"}',
    "null",
]


class Walker:
    """Draws turns for one wire format. Tokens are bytes, the format's markers and pieces of text."""

    def __init__(self, label: str):
        long = [text for text in TEXT if len(text.encode()) > 1]
        texts = list(dict.fromkeys(MARKERS[label] + KIN[label] + long))
        self.vocab = [bytes([byte]) for byte in range(256)] + [text.encode() for text in texts]
        self.ids = {text: 256 + index for index, text in enumerate(texts)}
        self.markers = [self.ids[text] for text in MARKERS[label]]
        self.kin = [self.ids[text] for text in KIN[label]]
        self.text = [ord(text) for text in TEXT if len(text.encode()) == 1] + [self.ids[text] for text in long]
        self.stops = [self.ids[text] for text in STOPS[label]]
        self.info = xgr.TokenizerInfo(self.vocab, stop_token_ids=[self.stops[0]])
        self.compiler = xgr.GrammarCompiler(self.info)

    def turn(self, tag: str, rng: random.Random, patience: int = 150) -> tuple[str, bool]:
        """(text without its stop token, whether a stop token ended it).

        Raises:
            AssertionError: the mask lets nothing through, or an allowed token is refused.
        """
        matcher = xgr.GrammarMatcher(self.compiler.compile_structural_tag(tag), override_stop_tokens=self.stops)
        mask = xgr.allocate_token_bitmask(1, len(self.vocab))
        out: list[bytes] = []
        for step in range(4 * patience):
            matcher.fill_next_token_bitmask(mask)
            words = mask[0].tolist()
            allowed = {token for token in range(len(self.vocab)) if words[token // 32] >> (token % 32) & 1}
            assert allowed, b"".join(out)
            token = self._choose(allowed, rng, hurry=step > patience)
            assert matcher.accept_token(token), (b"".join(out), self.vocab[token])
            if token in self.stops:
                return b"".join(out).decode(), True
            out.append(self.vocab[token])
        return b"".join(out).decode(errors="ignore"), False

    def _choose(self, allowed: set[int], rng: random.Random, hurry: bool) -> int:
        ends = sorted(allowed.intersection(self.stops))
        if ends and (hurry or rng.random() < 0.3):
            return rng.choice(ends)
        groups = [
            (self.markers, 1.0 if hurry else 0.3),
            ([ord(char) for char in '"}]'], 0.5 if hurry else 0.15),
            (self.kin, 0.0 if hurry else 0.15),
            (self.text, 1.0),
        ]
        for group, chance in groups:
            inside = sorted(allowed.intersection(group) - set(self.stops))
            if inside and rng.random() < chance:
                return rng.choice(inside)
        continuing = sorted(allowed - set(self.stops)) or ends
        return rng.choice(continuing)
