# SPDX-License-Identifier: Apache-2.0
"""The environment of the fault models, read in this one place.

`HPUSIM_FAULT_<MODEL>=<kind>[,option=value...]`; a model that is not named is off.

| variable | kinds | options (default) | what the device does |
|---|---|---|---|
| HPUSIM_FAULT_ATTENTION_WORKSPACE | oom, nan | limit (free memory) | FusedSDPA with an explicit bias keeps 4 B x heads x rows x keys for the life of the process; when that does not fit: out of memory, or NaN |
| HPUSIM_FAULT_RUN_AHEAD | on | - | freed intermediates occupy memory until the host has waited for the device |
| HPUSIM_FAULT_ASYNC_COPY | on | - | a non-blocking copy to the host holds garbage until the host has waited for it |
| HPUSIM_FAULT_POISON | fresh, kv, all | value (huge): huge, nan | `torch.empty` on the device is not zero; null block, padding block and freed KV blocks hold junk |
| HPUSIM_FAULT_ROUND_TRIP | on | - | fp32 -> bf16 -> fp32 inside one graph keeps the fp32 value |
| HPUSIM_FAULT_COLLECTIVE | die, hang, slow | rank (0), after (0), seconds (1) | that rank exits, never arrives, or arrives late once `after` collectives have passed |
"""  # noqa: E501

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gates.hpusim.settings import FAULT_PREFIX as PREFIX

# model -> (kinds, options and their defaults)
MODELS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "ATTENTION_WORKSPACE": (("oom", "nan"), {"limit": ""}),
    "RUN_AHEAD": (("on",), {}),
    "ASYNC_COPY": (("on",), {}),
    "POISON": (("fresh", "kv", "all"), {"value": "huge"}),
    "ROUND_TRIP": (("on",), {}),
    "COLLECTIVE": (("die", "hang", "slow"), {"rank": "0", "after": "0", "seconds": "1"}),
}
JUNK = ("huge", "nan")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class FaultError(ValueError):
    """A fault variable that names no model, kind or option; the message says which there are."""


@dataclass(frozen=True)
class Fault:
    """One model switched on."""

    model: str
    kind: str
    options: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """Option `name` as a number of at least 0; FaultError otherwise."""
        try:
            value = float(self.options[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise FaultError(f"{PREFIX}{self.model}: {name}={self.options[name]!r} is not a number of at least 0")
        return value

    def size(self, name: str) -> int | None:
        """Option `name` in bytes, with a suffix K, M or G; None when it is empty."""
        text = self.options[name]
        if not text:
            return None
        unit = _UNITS.get(text[-1].upper(), 1)
        digits = text if unit == 1 else text[:-1]
        if not digits.isdigit():
            raise FaultError(f"{PREFIX}{self.model}: {name}={text!r} is not a size like 64M")
        return int(digits) * unit


def _junk(fault: Fault, name: str) -> None:
    if fault.options[name] not in JUNK:
        raise FaultError(f"{PREFIX}{fault.model}: {name}={fault.options[name]!r}, expected {' or '.join(JUNK)}")


# option -> what reads it, and refuses what it cannot read
_READ: dict[str, Callable[[Fault, str], object]] = {
    "limit": Fault.size, "value": _junk, "rank": Fault.number, "after": Fault.number, "seconds": Fault.number,
}  # fmt: skip


def parse(model: str, text: str) -> Fault:
    """The fault that `HPUSIM_FAULT_<model>=<text>` switches on; FaultError names what is wrong with it."""
    if model not in MODELS:
        raise FaultError(f"{PREFIX}{model} is not a fault model; there are {', '.join(PREFIX + m for m in MODELS)}")
    kinds, defaults = MODELS[model]
    kind, *rest = text.split(",")
    if kind not in kinds:
        raise FaultError(f"{PREFIX}{model}={text!r}: expected {' or '.join(kinds)}, unset it to switch the model off")
    options = dict(defaults)
    for item in rest:
        name, _, value = item.partition("=")
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise FaultError(f"{PREFIX}{model}: unknown option {name!r}; there are: {known}")
        options[name] = value
    fault = Fault(model, kind, options)
    for name in options:
        _READ[name](fault, name)
    return fault


def from_environment(environment: Mapping[str, str] = os.environ) -> list[Fault]:
    """Every fault the environment switches on; FaultError for a name nobody knows."""
    names = sorted(name for name in environment if name.startswith(PREFIX))
    return [parse(name.removeprefix(PREFIX), environment[name]) for name in names]
