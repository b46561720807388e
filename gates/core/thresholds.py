# SPDX-License-Identifier: Apache-2.0
"""Thresholds: one file, each with its direction, source and reason. A gate without an entry there cannot run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomlkit
import tomlkit.exceptions

from gates.core.errors import GateError
from gates.core.profile import PROFILES

DEFAULT = Path(__file__).resolve().parents[1] / "thresholds.toml"


@dataclass(frozen=True)
class Threshold:
    """A limit: `max` means the measurement must not exceed it, `min` that it must reach it.

    Attributes:
        floor_factor: how many times a measured noise floor the limit must at least be; 0 where no floor applies.
        profiles: other limits for named profiles (the tiny model's), each as {"value", "reason"}.
        floor: the noise floor as last measured, and on what; empty where none was or none applies.
        port_page: the value the port pages used, None where they have no such gate.
    """

    gate: str
    value: float
    direction: str
    unit: str
    source: str
    reason: str
    floor_factor: float = 0.0
    port_page: float | None = None
    floor: str = ""
    profiles: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def of(self, profile: str) -> Threshold:
        """The limit in force for a profile."""
        other = self.profiles.get(profile)
        return dataclasses.replace(self, value=float(str(other["value"]))) if other else self

    def holds(self, value: float) -> bool:
        return value <= self.value if self.direction == "max" else value >= self.value

    def check_floor(self, floor: float) -> None:
        """Refuse a limit tighter than the server's distance from itself.

        Args:
            floor: that distance, in the limit's unit; for a `min` limit, which is one of a share, the share of itself
                that the server reaches.

        Raises:
            GateError: the limit leaves less room than `floor_factor` x the floor.
        """
        room = self.value if self.direction == "max" else 1 - self.value
        noise = floor if self.direction == "max" else 1 - floor
        if self.floor_factor and room < self.floor_factor * noise:
            side = "below" if self.direction == "max" else "above"
            raise GateError(
                f"threshold {self.value:g} {self.unit} is {side} what the measured floor {floor:g} allows "
                f"({self.floor_factor:g} x the server's distance from itself)",
                where=f"gate {self.gate}",
                action="change it in gates/thresholds.toml with the measured reason, in its own commit",
            )


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def load(path: Path = DEFAULT) -> dict[str, Threshold]:
    """Read the file.

    Raises:
        GateError: unreadable, not TOML, an unknown or missing key, a direction other than `max` and `min`.
    """
    try:
        data = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except OSError as error:
        raise GateError(f"cannot read thresholds ({error.strerror})", where=str(path)) from error
    except (tomlkit.exceptions.ParseError, UnicodeDecodeError) as error:
        raise GateError(f"not TOML ({error})", where=str(path), action="mend the file") from error
    out: dict[str, Threshold] = {}
    for gate, body in data.items():
        where = f"{path.name} [{gate}]"
        if not isinstance(body, Mapping):
            raise GateError("no table", where=where, action="see the head of the file")
        try:
            entry = Threshold(gate=gate, **body)
        except TypeError as error:
            raise GateError(
                str(error).replace("Threshold.__init__() ", ""), where=where, action="see the head of the file"
            ) from error
        if not _number(entry.value) or not _number(entry.floor_factor) or entry.floor_factor < 0:
            raise GateError("value and floor_factor are numbers, floor_factor not below 0", where=where)
        if not isinstance(entry.profiles, Mapping) or not all(isinstance(v, Mapping) for v in entry.profiles.values()):
            raise GateError("`profiles` holds tables", where=where, action="write [GATE.profiles.NAME]")
        if unknown := set(entry.profiles) - set(PROFILES):
            raise GateError(f"no profile `{min(unknown)}`", where=where, action=f"choose of {', '.join(PROFILES)}")
        if entry.direction not in ("max", "min"):
            raise GateError(f"direction {entry.direction!r}", where=where, action="use `max` or `min`")
        if not entry.source or not entry.reason:
            raise GateError("a threshold without source or reason", where=where, action="write both")
        for profile, other in entry.profiles.items():
            if set(other) != {"value", "reason"} or not _number(other["value"]) or not other["reason"]:
                raise GateError("another limit needs value and reason", where=f"{where} profile {profile}")
        out[gate] = entry
    return out
