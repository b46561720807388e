# SPDX-License-Identifier: Apache-2.0
"""One gate's result: the record that goes into the ledger, one JSON line each.

The schema is versioned. A reader accepts its own version and older ones it knows; a newer one is refused by name, so
that a field it does not understand is never silently dropped.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from gates.core.errors import GateError

SCHEMA_VERSION = 2  # 2: a line of kind "end" closes a run
READABLE = (1, 2)
LONGEST_REASON = 600  # characters
LEAST_SECRET = 8  # characters; a shorter key hides nothing, and stands in half of all words


class Verdict(str, Enum):
    """PASS and FAIL speak of the server, ERROR of the gate, SKIP of what could not be tried (with the reason)."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Measurement:
    """A number with its unit and, where it is a statistic, its 95 % interval.

    Attributes:
        value: the figure the threshold is compared with; None where nothing could be measured.
        unit: e.g. "nats", "ratio", "count", "share", "s".
        low, high: 95 % confidence interval, both or neither.
        samples: how many observations it rests on.
    """

    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if not all(_number(figure) for figure in (self.value, self.low, self.high, self.samples)):
            raise ValueError(f"measurement is not finite: {self.value} [{self.low}, {self.high}]")
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval needs both ends")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"interval is reversed: {self.low} > {self.high}")


@dataclass(frozen=True)
class GateResult:
    """The outcome of one gate against one server.

    Attributes:
        gate: name as `--list` prints it.
        verdict: see `Verdict`.
        reason: one sentence; mandatory for FAIL, SKIP and ERROR.
        measurement: the gated figure.
        threshold: the limit it was held to, with its direction; None where the gate is a plain yes or no.
        threshold_source: why that limit.
        noise_floor: the server's distance from itself, in the unit of the measurement, where it was measured.
        control: the value the gate saw on its known fault, where that was run.
        duration_s: wall time.
        seeds: random seeds used.
        details: gate-specific figures for the report (JSON values only).
    """

    gate: str
    verdict: Verdict
    reason: str = ""
    measurement: Measurement | None = None
    threshold: float | None = None
    threshold_direction: str = ""
    threshold_source: str = ""
    noise_floor: float | None = None
    control: float | None = None
    duration_s: float = 0.0
    seeds: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.verdict is not Verdict.PASS and not self.reason:
            raise ValueError(f"gate {self.gate}: {self.verdict.value} without a reason")
        if self.threshold is not None and self.threshold_direction not in ("max", "min"):
            raise ValueError(f"gate {self.gate}: a threshold is `max` or `min`, not {self.threshold_direction!r}")

    def of_run(self, started: str) -> GateResult:
        """The same, with the run it comes from in its reason."""
        note = f"from the run of {started}"
        return dataclasses.replace(self, reason=f"{self.reason} ({note})" if self.reason else note)

    def plain(self, secret: str = "") -> GateResult:
        """The same, with text that can be printed and figures that JSON can hold, and without `secret`."""
        reason = plain(self.reason, secret)[:LONGEST_REASON]
        return dataclasses.replace(self, reason=reason, details=plain(dict(self.details), secret))

    def to_json(self) -> dict[str, Any]:
        """The record without server facts, ready for `json.dumps`."""
        data = asdict(self)
        data["verdict"] = self.verdict.value
        data["seeds"] = list(self.seeds)
        return data


def plain(value: Any, secret: str = "") -> Any:
    """A JSON value as a ledger and a terminal can hold it: no control characters, no lone surrogates, no NaN.

    Args:
        secret: a text that a server may echo and nobody should read.
    """
    if isinstance(value, str):
        if len(secret) >= LEAST_SECRET:
            value = value.replace(secret, "[hidden]")
        text = value.encode("utf-8", "backslashreplace").decode()
        return "".join(c if c.isprintable() else " " if c in "\n\t" else repr(c)[1:-1] for c in text)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {plain(str(key), secret): plain(item, secret) for key, item in value.items()}
    return [plain(item, secret) for item in value] if isinstance(value, (list, tuple)) else value


def _number(value: Any, optional: bool = True) -> bool:
    if value is None:
        return optional
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_kinds(body: Mapping[str, Any]) -> None:
    texts = ("gate", "reason", "threshold_direction", "threshold_source")
    wrong = [name for name in texts if not isinstance(body.get(name, ""), str)]
    wrong += [name for name in ("threshold", "noise_floor", "control") if not _number(body.get(name))]
    wrong += [] if _number(body.get("duration_s", 0.0), optional=False) else ["duration_s"]
    wrong += [] if isinstance(body.get("details", {}), dict) else ["details"]
    if wrong:
        raise ValueError(f"`{wrong[0]}` is {body.get(wrong[0])!r}")


def from_json(data: Mapping[str, Any], *, where: str) -> GateResult:
    """Read one record back.

    Args:
        data: a decoded ledger line of kind "result".
        where: file and line for the message.
    Raises:
        GateError: a field is missing, unknown or of the wrong kind.
    """
    known = set(GateResult.__dataclass_fields__)
    body = {k: v for k, v in data.items() if k not in ("kind", "schema")}
    unknown = set(body) - known
    if unknown:
        raise GateError(
            f"unknown field `{sorted(unknown)[0]}` in a result", where=where, action="see gates/core/result.py"
        )
    try:
        _check_kinds(body)
        measurement = body.get("measurement")
        body["measurement"] = Measurement(**measurement) if measurement is not None else None
        body["verdict"] = Verdict(body["verdict"])
        body["seeds"] = tuple(int(seed) for seed in body.get("seeds", ()))
        return GateResult(**body)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise GateError(
            f"not a gate result ({error})", where=where, action="delete the line or re-run the gate"
        ) from error


def dumps(data: Mapping[str, Any]) -> str:
    """One ledger line: sorted keys, no NaN, no newline inside."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
