# SPDX-License-Identifier: Apache-2.0
"""What differs between the tiny models: one entry a model family."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gates.tiny.turns import Turns

NAMES = ("beam", "muse")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """A tiny model.

    Attributes:
        parser: what the server's parsers are called.
        turns: how its turns are written.
        write_tokenizer: tokenizer and templates into a folder.
        build: the model in Hugging Face's classes, laid out but not trained; called with token ids it has `.logits`.
        quantized: tensors of the served, quantised layout from the trained model's state (fp32).
        full: those of the BF16 layout from the quantised ones, rounded once more.
        write_config: (folder, quantised or not) writes `config.json`.
        load: the model in Hugging Face's classes from a BF16 checkpoint, for evaluation.
    """

    parser: str
    turns: Turns
    write_tokenizer: Callable[[Path], None]
    build: Callable[[], Any]
    quantized: Callable[[Tensors], Tensors]
    full: Callable[[Tensors], Tensors]
    write_config: Callable[[Path, bool], None]
    load: Callable[[Path], Any]

    @property
    def weights(self) -> Path:
        """The kept weights beside this file."""
        return Path(__file__).with_name(f"{self.parser}.safetensors")


def family(name: str) -> Family:
    """A family by name.

    Raises:
        ValueError: there is no such family.
    """
    if name not in NAMES:
        raise ValueError(f"no tiny model `{name}`; there is {' and '.join(NAMES)}")
    found: Family = importlib.import_module(f"gates.tiny.{name}").FAMILY
    return found


def of_checkpoint(folder: Path) -> Family:
    """The family of a written checkpoint.

    Raises:
        ValueError: the folder holds no checkpoint of a known family.
    """
    try:
        kind = json.loads((folder / "config.json").read_text())["model_type"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: no config.json with a model_type ({error}); see gates.tiny.checkpoint") from error
    return family(str(kind).partition("_")[0])
