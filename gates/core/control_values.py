# SPDX-License-Identifier: Apache-2.0
"""What each gate saw on its known fault: gates/control_values.json, from `python -m gates.controls.matrix --record`.

Beside a value and its limit it tells how far a real fault is from both. Per profile: the stand-in's figures are of
another model than the tiny Beam's, so a profile without controls of its own shows none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gates.core.errors import GateError
from gates.core.result import Measurement

DEFAULT = Path(__file__).resolve().parents[1] / "control_values.json"


@dataclass(frozen=True)
class Control:
    """A known fault and the figure the gate measured on it."""

    fault: str
    value: float
    unit: str


def load(path: Path = DEFAULT) -> dict[str, dict[str, Control]]:
    """Controls by profile and gate; none where the file is not there.

    Raises:
        GateError: the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {profile: {gate: Control(**entry) for gate, entry in gates.items()} for profile, gates in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise GateError(
            f"not control values ({error})", where=str(path), action="record them anew: gates.controls.matrix --record"
        ) from error


def of(profile: str, gate: str, measurement: Measurement | None, path: Path = DEFAULT) -> Control | None:
    """The control of a gate's measurement, if one was recorded in its unit."""
    control = load(path).get(profile, {}).get(gate)
    return control if control is not None and measurement is not None and control.unit == measurement.unit else None


def save(profile: str, controls: Mapping[str, Control], path: Path = DEFAULT) -> None:
    """Put a profile's controls in the place of its old ones."""
    kept: dict[str, Any] = {name: {g: vars(c) for g, c in gates.items()} for name, gates in load(path).items()}
    kept[profile] = {gate: vars(control) for gate, control in controls.items()}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
