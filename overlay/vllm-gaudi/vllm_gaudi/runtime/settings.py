# SPDX-License-Identifier: Apache-2.0
"""Every setting of the runner patches, in one table, read once per process from the environment.

A value that cannot be read is refused at the first use with the variable, the value and what is accepted.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PREFIX = "VLLM_GAUDI_FRONTIER_"
# Variables of the loader and of the tool, which may be set where a server runs.
_SHORT_PREFIXES = ("VLLM_", "VLLM_GAUDI_", "VLLM_FRONTIER_")
_OTHERS = tuple(PREFIX + name for name in ("STATE_HASH", "CACHE", "SOURCE_", "PYTHON_", "BUILD_"))


class SettingError(ValueError):
    """A setting has a value that is not accepted; the message names the variable and the accepted values."""


def _switch(text: str) -> str:
    value = text.strip().lower()
    value = {"1": "on", "true": "on", "0": "off", "false": "off"}.get(value, value)
    if value not in ("auto", "on", "off"):
        raise ValueError("auto, on or off")
    return value


def _integer(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"an integer of at least {low}") from None
        if value < low:
            raise ValueError(f"an integer of at least {low}")
        return value

    return parse


def _auto_integer(low: int) -> Callable[[str], int | None]:
    integer = _integer(low)

    def parse(text: str) -> int | None:
        if text.strip().lower() == "auto":
            return None
        try:
            return integer(text)
        except ValueError as error:
            raise ValueError(f"auto or {error}") from None

    return parse


def _depth(text: str) -> int | None:
    accepted = "auto, 0 (off), 1 or 2"
    if text.strip().lower() == "auto":
        return None
    if text.strip() not in ("0", "1", "2"):
        raise ValueError(accepted)
    return int(text)


def _share(text: str) -> float | None:
    accepted = "auto, a number above 0 and at most 0.99, or 1 (off)"
    if text.strip().lower() == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(accepted) from None
    # Between them a long prompt would wait hundreds of times as long as it computes.
    if not 0 < value <= 0.99 and value != 1:
        raise ValueError(accepted)
    return value


@dataclass(frozen=True)
class Setting:
    """One setting: environment variable `PREFIX + name`, default as text, reader, meaning."""

    name: str
    default: str
    parse: Callable[[str], Any]
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name


# `auto` means: on for the models in `gates.FRONTIER_MODEL_TYPES`, upstream behaviour for every other model.
SETTINGS = (
    Setting(
        "EXACT_WINDOW",
        "auto",
        _switch,
        "Sliding-window layers see exactly their window, in prefill and decode, through a fixed-width block list.",
    ),
    Setting(
        "WINDOWED_KV",
        "auto",
        _switch,
        "Sliding-window layers keep the KV blocks of their window alone, through vLLM's hybrid KV-cache manager.",
    ),
    Setting(
        "LONG_ATTENTION",
        "auto",
        _switch,
        "Biased prompt attention runs in query tiles under ATTENTION_WORKSPACE_BYTES; long contexts get a compact "
        "validity row instead of a dense bias.",
    ),
    Setting(
        "ATTENTION_WORKSPACE_BYTES",
        str(2 * 2**30),
        _integer(2**20),
        "Bytes one biased attention call may keep as kernel workspace (4 x heads, at least 16, x query rows x keys).",
    ),
    Setting(
        "COMPACT_BIAS_KEYS",
        str(65536),
        _integer(1),
        "Prompts with more keys (cached context + chunk) than this never build the dense bias.",
    ),
    Setting(
        "TILES_IN_FLIGHT",
        "2",
        _integer(1),
        "Query tiles queued on the device at once; the host waits for an older one first.",
    ),
    Setting(
        "RUN_AHEAD_DEPTH",
        "auto",
        _depth,
        "Layers the host may have queued in an ungraphed prefill: 1 waits for a layer before launching the next, "
        "2 lets one run while the next is launched, 0 is unbounded. auto is 2.",
    ),
    Setting("RUN_AHEAD_MIN_TOKENS", "256", _integer(1), "Prefill forwards with fewer (padded) tokens are not bounded."),
    Setting(
        "DECODE_LAYERS_PER_GRAPH",
        "auto",
        _auto_integer(0),
        "Decoder layers between two graph cuts in decode; 0 never cuts. Upstream cuts after every layer. auto is 0.",
    ),
    Setting(
        "PREFILL_SHARE",
        "auto",
        _share,
        "Share of their solo speed that running decodes keep while a long prompt reads in. auto is 0.75.",
    ),
    Setting(
        "PREFILL_SHARE_TOKENS",
        "8192",
        _integer(1),
        "Prompts with at most this many tokens left to compute are never held back.",
    ),
    Setting("PROMPT_LOGPROB_ROWS", "256", _integer(1), "Rows of prompt log-probabilities computed at a time."),
    Setting(
        "MOE_OVERLOAD",
        "on",
        _switch,
        "FP8 expert calls name their operator overload instead of leaving the choice to the packet.",
    ),
    Setting(
        "HOST_LISTS",
        "on",
        _switch,
        "Decode block lists are built without Python loops (same values as upstream builds).",
    ),
    Setting(
        "MEMORY_MARGIN_CHECK",
        "auto",
        _switch,
        "Start refuses a memory plan whose margin cannot hold the transients of a prefill chunk.",
    ),
)


@dataclass(frozen=True)
class Settings:
    """Parsed values; attribute names are the setting names in lower case."""

    exact_window: str
    windowed_kv: str
    long_attention: str
    attention_workspace_bytes: int
    compact_bias_keys: int
    tiles_in_flight: int
    run_ahead_depth: int | None
    run_ahead_min_tokens: int
    decode_layers_per_graph: int | None
    prefill_share: float | None
    prefill_share_tokens: int
    prompt_logprob_rows: int
    moe_overload: str
    host_lists: str
    memory_margin_check: str


def parse(environ: dict[str, str]) -> Settings:
    """Read all settings from `environ`.

    Raises:
        SettingError: a value is not accepted, or a name with the prefix is nobody's.
    """
    values = {}
    for setting in SETTINGS:
        text = environ.get(setting.variable, setting.default)
        try:
            values[setting.name.lower()] = setting.parse(text)
        except ValueError as error:
            raise SettingError(f"{setting.variable}={text!r} is not accepted: set it to {error}, or unset it") from None
    for name in sorted(environ):
        if meant := _meant(name):
            raise SettingError(f"{name} is not a setting: did you mean {meant}?")
        if name.startswith(PREFIX) and not name.startswith(_OTHERS) and not any(name == s.variable for s in SETTINGS):
            names = ", ".join(s.name for s in SETTINGS)
            raise SettingError(f"{name} is not a setting: unset it; after {PREFIX} there is {names}")
    return Settings(**values)


def _meant(name: str) -> str | None:
    """The setting that `name`, which is none, is a near miss of: misspelt, in lower case, or short of the prefix.

    vLLM's own variables and those of other parts of the distribution are none of these.
    """
    known = {s.variable: s.name for s in SETTINGS}
    upper = name.upper()
    if name in known or not upper.startswith("VLLM_"):
        return None
    if close := difflib.get_close_matches(upper, known, 1, 0.9):
        return close[0]
    return next((v for v, short in known.items() if upper in [p + short for p in _SHORT_PREFIXES]), None)


@functools.cache
def current() -> Settings:
    """The process's settings, read once."""
    return parse(dict(os.environ))


def variable(name: str) -> str:
    """Environment variable of a setting, for messages."""
    return PREFIX + name.upper()
