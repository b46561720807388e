# SPDX-License-Identifier: Apache-2.0
"""Settings of the emulated device, read once from the environment.

| variable | default | meaning |
|---|---|---|
| HPUSIM_HW | gaudi2 | personality: gaudi2 or gaudi3 |
| HPUSIM_MEM_GIB | 4 | device memory a process may allocate, GiB (real host memory backs it) |
| HPUSIM_DEVICES | 8 | devices in the emulated machine |
| HPUSIM_TRACK | 1 | follow which tensors live on the device through every operator; 0 knows only explicit placements |
| HPUSIM_METERS | unset | path of the JSON summary each process writes at exit; `{pid}` is replaced |
| HPUSIM_MIX | count | operator with host and device tensors mixed: `count` it or `raise` |
| HPUSIM_NATIVE | 0 | 1: the strict lane with a real hpu:0 device (needs a C++ compiler) |
| HPUSIM_OFF | unset | 1: do not emulate anything in this process |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

GIB = 1 << 30


@dataclass(frozen=True)
class Personality:
    """What differs between the two cards as far as software can see."""

    name: str
    device_name: str
    device_type: int  # value of synDeviceType
    fp8_max: float  # largest finite e4m3 value the card's casts produce


# Gaudi 2 reserves the top exponent of e4m3 for infinities and NaN, hence 240; Gaudi 3 uses the OCP encoding, 448.
PERSONALITIES = {
    "gaudi2": Personality("gaudi2", "GAUDI2", 4, 240.0),
    "gaudi3": Personality("gaudi3", "GAUDI3", 5, 448.0),
}


@dataclass(frozen=True)
class Settings:
    personality: Personality
    memory_bytes: int
    devices: int
    track: bool
    meters_path: str | None
    mix: str
    native: bool


def _number(name: str, default: str, lowest: float) -> float:
    text = os.environ.get(name, default)
    try:
        value = float(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise ValueError(f"{name}={text!r}: expected a number of at least {lowest:g}; unset it for {default}")
    return value


def _choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(name, default)
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}; unset it for {default}")
    return value


@cache
def settings() -> Settings:
    """The process's settings; ValueError names the variable that is wrong."""
    return Settings(
        personality=PERSONALITIES[_choice("HPUSIM_HW", "gaudi2", tuple(PERSONALITIES))],
        memory_bytes=int(_number("HPUSIM_MEM_GIB", "4", 0.01) * GIB),
        devices=int(_number("HPUSIM_DEVICES", "8", 1)),
        track=_choice("HPUSIM_TRACK", "1", ("0", "1")) == "1",
        meters_path=os.environ.get("HPUSIM_METERS") or None,
        mix=_choice("HPUSIM_MIX", "count", ("count", "raise")),
        native=_choice("HPUSIM_NATIVE", "0", ("0", "1")) == "1",
    )
