# SPDX-License-Identifier: Apache-2.0
"""Launch model: from counted cuts to predicted launches and host milliseconds a step, for any layer count.

    launches(L) = fixed + per_layer x L        host_ms = launches x microseconds_per_launch / 1000

`per_layer` is the mean of the watched layers, `fixed` is the rest of the step. Measured on hardware by the port pages:
367 launches a decode step at about 105 microseconds each (Beam, 52 layers), 313 launches in 28.7 ms (Muse, 62 layers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BEAM_US_PER_LAUNCH = 105.0
MUSE_US_PER_LAUNCH = 28.7e3 / 313


@dataclass(frozen=True)
class Prediction:
    layers: int
    fixed: float  # launches a step outside the layers
    per_layer: float  # launches a step and layer
    us_per_launch: float

    @property
    def launches(self) -> float:
        return self.fixed + self.per_layer * self.layers

    @property
    def host_ms(self) -> float:
        return self.launches * self.us_per_launch / 1e3

    def __str__(self) -> str:
        return (
            f"{self.launches:.0f} launches, {self.host_ms:.1f} ms of host time a step "
            f"({self.fixed:.1f} + {self.per_layer:.2f} x {self.layers} layers, {self.us_per_launch:.1f} us a launch)"
        )


def predict(summary: dict[str, Any], kind: str, layers: int, us_per_launch: float = BEAM_US_PER_LAUNCH) -> Prediction:
    """Predict a step of `kind` at `layers` layers from the meter summary of a run at any layer count.

    ValueError when the run has no such step, or no layer was watched (torch.compile, or no module list `layers`), and
    for a negative number of layers or microseconds.
    """
    if layers < 0 or us_per_launch < 0:
        raise ValueError(f"predict: {layers} layers at {us_per_launch} us a launch; neither can be negative")
    steps = summary["steps"].get(kind, 0)
    watched = summary["layers"].get(kind, {})
    if not steps or not watched:
        raise ValueError(f"no {kind!r} step with watched layers in this run; steps: {summary['steps']}")
    total = summary["phases"][kind]["launches"] / steps
    in_layers = sum(layer["launches"] for layer in watched.values()) / steps
    return Prediction(layers, total - in_layers, in_layers / len(watched), us_per_launch)
