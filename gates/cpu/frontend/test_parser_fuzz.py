# SPDX-License-Identifier: Apache-2.0
"""Random output for as long as asked: `PARSER_FUZZ_SECONDS=3600 python -m pytest -m long
gates/cpu/frontend/test_parser_fuzz.py`.

Each round draws a format, a mode, a prompt that may end inside the turn, and an output of up to 64 KB built from pieces
of the format. A finding prints the seed; `PARSER_FUZZ_SEED` starts there again.
"""

import os
import random
import time

import parser_texts
import pytest
from parser_texts import FORMATS, PROMPTS, is_json, joined, read
from test_parser_cost import CountingPattern, counted  # noqa: F401
from vllm.parser.chat_format.turn_piece import TurnMode

SECONDS = float(os.environ.get("PARSER_FUZZ_SECONDS", "60"))
# Far above any real cost; a quadratic case passes it at 64 KB.
MOST_LOOKS = 4000


def _output(draw, name):
    pieces = parser_texts._MUSE_PIECES if name == "muse" else parser_texts._BEAM_PIECES
    words = parser_texts._WORDS
    parts = []
    for _ in range(draw.choice((5, 20, 60))):
        kind = draw.random()
        part = draw.choice(pieces) if kind < 0.6 else draw.choice(words)
        if kind > 0.8:
            part = part[: draw.randrange(1, len(part) + 1)]
        if draw.random() < 0.05:
            part *= draw.choice((10, 1000))
        parts.append(part)
    return "".join(parts)[: 1 << 16]


def _chunks(draw, text):
    size, at, found = draw.choice((1, 4, 50, 2000)), 0, []
    while at < len(text):
        end = at + draw.randrange(1, 2 * size)
        found.append(text[at:end])
        at = end
    return found


def _round(draw):
    name = draw.choice(FORMATS)
    mode = TurnMode(draw.random() < 0.8, draw.random() < 0.8, draw.random() < 0.5)
    prompt = PROMPTS[name] + (_output(draw, name)[:500] if draw.random() < 0.3 else "")
    text = _output(draw, name)
    CountingPattern.seen = 0
    once = joined(read(name, [text], mode, prompt))
    chunks = _chunks(draw, text)
    assert joined(read(name, chunks, mode, prompt)) == once
    looks = CountingPattern.seen / (len(text) + len(prompt) + 8 * len(chunks) + 1)
    assert looks < MOST_LOOKS, f"{looks:.0f} looks a character"
    if not mode.fragments:
        assert all(is_json(arguments) for _, arguments in once[2])


@pytest.mark.long
def test_fuzz(counted, record_property):  # noqa: F811
    seed = int(os.environ.get("PARSER_FUZZ_SEED", "0"))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            _round(random.Random(seed))
        except BaseException as error:
            raise AssertionError(f"PARSER_FUZZ_SEED={seed}: {error!r}") from error
        seed += 1
    record_property("rounds", seed)
    print(f"{seed} rounds")
