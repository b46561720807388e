# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and chat files of the test checkpoints: byte-level BPE with the markers of a message format added."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = ("assistant", "analysis", "final", "user", "system", "tool", "xml", " to", "=", "functions", " the", " of",
         " and", " in", " is", " city", "Paris", "weather", "get_weather", "days", "hello", " world")  # fmt: skip


@dataclass(frozen=True)
class Markers:
    """The tokens a message format adds.

    Attributes:
        control: markers no text may hold; the tokenizer calls them special.
        structure: parts of a call that are one token each, as text.
        stop: those that end a turn.
        end: the one that ends an answer.
        pad: the one for padding.
    """

    control: tuple[str, ...]
    structure: tuple[str, ...]
    stop: tuple[str, ...]
    end: str
    pad: str

    def ids(self) -> dict[str, int]:
        """Token ids, right after the byte-level vocabulary."""
        first = len(vocabulary()[0])
        return {token: first + index for index, token in enumerate((*self.control, *self.structure))}


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


def write(folder: Path, markers: Markers, template: str, generation: dict[str, Any], **extra: object) -> None:
    """Write tokenizer, its config, the chat template and generation_config into `folder`.

    Args:
        generation: entries of generation_config.json beside the stop tokens.
        extra: further entries of tokenizer_config.json.
    """
    tokens, merges = vocabulary()
    ids = markers.ids()
    added = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": token in markers.control}
        for token in ids
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": tokens, "merges": merges, "ignore_merges": False},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": markers.end,
        "pad_token": markers.pad,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": template,
        **extra,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "chat_template.jinja").write_text(template)
    stops = {"eos_token_id": [ids[token] for token in markers.stop], "pad_token_id": ids[markers.pad]}
    (folder / "generation_config.json").write_text(json.dumps({**stops, **generation}, indent=1))
