# SPDX-License-Identifier: Apache-2.0
"""Reasoning effort: any of the usual level names onto the levels a model was trained with.

    asked      Beam (reasoning_effort)   Muse (reasoning_strength)
    none       low                       low
    minimal    low                       low
    low        low                       low
    medium     medium                    medium
    high       high                      high
    xhigh      high                      xhigh
    max        high                      xhigh

Both models always reason, so `none` means the least they do. A level between two served ones
goes to the higher. In `chat_template_kwargs`, false counts as `none` and true as no wish.
VLLM_REASONING_EFFORT_LEVELS ("low,high") replaces a model's levels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import VLLMValidationError

SCALE = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
LEVELS_VARIABLE = "VLLM_REASONING_EFFORT_LEVELS"
_ASKED_AS = ("reasoning_effort", "reasoning_strength")


@dataclass(frozen=True)
class EffortLevels:
    """`variable` is the chat template's name for the level."""

    variable: str
    levels: tuple[str, ...]

    def served(self) -> tuple[str, ...]:
        """The levels, as the environment may have replaced them.

        Raises:
            ValueError: the environment names none, or an unknown one.
        """
        own = os.environ.get(LEVELS_VARIABLE)
        if own is None:
            return self.levels
        levels = tuple(level.strip() for level in own.split(",") if level.strip())
        if not levels or any(level not in SCALE for level in levels):
            raise ValueError(f"{LEVELS_VARIABLE}={own!r}: a comma-separated list of {', '.join(SCALE)} is expected")
        return levels


def nearest(level: str, levels: tuple[str, ...]) -> str:
    """The member of `levels` next to `level` on the scale; ties go to the higher one."""
    position = SCALE.index(level)
    return min(levels, key=lambda served: (abs(SCALE.index(served) - position), -SCALE.index(served)))


def asked_level(value: Any) -> str | None:
    """A scale name, or None for no wish.

    Raises:
        VLLMValidationError: not a level.
    """
    if value is None or value is True:
        return None
    if value is False:
        return "none"
    level = value.strip().lower() if isinstance(value, str) else value
    if level not in SCALE:
        raise VLLMValidationError(
            f"reasoning_effort {repr(value)[:64]} is not a level; send one of {', '.join(SCALE)}",
            parameter="reasoning_effort",
        )
    return level


def map_effort(kwargs: Mapping[str, Any], model: EffortLevels, asked_thinking: bool) -> dict[str, Any]:
    """Chat-template arguments with the level under the model's own variable.

    Args:
        kwargs: merged arguments; the request's top-level level has won over its kwargs.
        asked_thinking: the client itself set `enable_thinking`. Otherwise the one derived from
            the level is dropped, because the models reason at every level.
    """
    result = dict(kwargs)
    wishes = [asked_level(result.pop(name)) for name in _ASKED_AS if name in result]
    level = next((wish for wish in wishes if wish is not None), None)
    if not asked_thinking:
        result.pop("enable_thinking", None)
    if level is not None:
        result[model.variable] = nearest(level, model.served())
    return result
