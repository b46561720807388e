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
| HPUSIM_NATIVE_CACHE | the user's cache | where that lane's extension is built and kept (native/build.py) |
| HPUSIM_FSDPA_WINDOW | self_included | FusedSDPA's window convention (ops/window.py) |
| HPUSIM_FAULT_... | unset | fault models (faults/config.py) |
| HPUSIM_OFF | 0 | 1: do not emulate anything in this process |

A variable of this prefix that is not in the table stops the process: a misspelt setting would silently emulate another
device.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GIB = 1 << 30
_LARGEST = 1 << 20  # of any number: a pebibyte, a million cards
PREFIX = "HPUSIM_"
FAULT_PREFIX = "HPUSIM_FAULT_"
NAMES = ("HW", "MEM_GIB", "DEVICES", "TRACK", "METERS", "MIX", "NATIVE", "NATIVE_CACHE", "FSDPA_WINDOW", "OFF")


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


def _number(name: str, default: str, lowest: float, whole: bool = False) -> float:
    text = os.environ.get(name, default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not lowest <= value <= _LARGEST or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise ValueError(
            f"{name}={text!r}: expected {kind} of at least {lowest:g} and at most {_LARGEST}; unset it for {default}"
        )
    return value


def _choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(name, default)
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}; unset it for {default}")
    return value


def refuse_unknown(names: Iterable[str]) -> None:
    """ValueError when one of `names` has this package's prefix and no meaning; says which name may be meant."""
    known = [PREFIX + name for name in NAMES]
    for name in sorted(names):
        if name.startswith(PREFIX) and not name.startswith(FAULT_PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)} and {FAULT_PREFIX}..."
            raise ValueError(f"{name} is not a setting of the emulated Gaudi: {hint} Unset it or correct the name.")


def switched_off() -> bool:
    """Whether this process is to be left alone."""
    return _choice("HPUSIM_OFF", "0", ("0", "1")) == "1"


def _meters_path() -> str | None:
    """Where the summary goes; checked now, because it is written when nobody listens any more."""
    text = os.environ.get("HPUSIM_METERS")
    if not text:
        return None
    folder = Path(text).parent
    if not os.access(folder, os.W_OK | os.X_OK) or Path(text).is_dir():
        raise ValueError(f"HPUSIM_METERS={text!r}: no file can be written there; make the folder {folder} or unset it")
    return text


@cache
def settings() -> Settings:
    """The process's settings; ValueError names the variable that is wrong."""
    refuse_unknown(os.environ)
    return Settings(
        personality=PERSONALITIES[_choice("HPUSIM_HW", "gaudi2", tuple(PERSONALITIES))],
        memory_bytes=int(_number("HPUSIM_MEM_GIB", "4", 0.01) * GIB),
        devices=int(_number("HPUSIM_DEVICES", "8", 1, whole=True)),
        track=_choice("HPUSIM_TRACK", "1", ("0", "1")) == "1",
        meters_path=_meters_path(),
        mix=_choice("HPUSIM_MIX", "count", ("count", "raise")),
        native=_choice("HPUSIM_NATIVE", "0", ("0", "1")) == "1",
    )
