# SPDX-License-Identifier: Apache-2.0
"""The demo's closing table: what ran, what the emulated card counted, how long each phase took."""

from __future__ import annotations

from typing import Any

BEAM_LAYERS, MUSE_LAYERS = 52, 62


def meter_lines(meters: list[dict[str, Any]]) -> list[str]:
    """One line a kind of step, for the first rank."""
    from gates.hpusim.meters import (
        launches,
    )  # loads torch, which the demo does without until it has checked the machine

    lines = []
    for summary in meters[:1]:
        for kind, count in sorted(summary["steps"].items()):
            if kind == "idle":
                continue
            phase = summary["phases"][kind]
            per_step = {
                "launches": phase["launches"],
                "copies to device": phase["h2d"]["count"],
                "to host": phase["d2h"]["count"],
                "host waits": phase["syncs"]["total"],
                "MoE inputs": phase["moe_tensor_inputs"],
            }
            figures = ", ".join(f"{name} {value / count:.1f}" for name, value in per_step.items())
            lines.append(f"  {kind:<16} {count:>4} steps; a step: {figures}; largest copy to host "
                         f"{phase['d2h']['largest']} B")  # fmt: skip
        lines.append(f"  device memory at most {summary['memory_peak'] / 2**20:.0f} MiB")
        try:
            lines.append(f"  launch model, this program at {BEAM_LAYERS} layers: "
                         f"{launches.predict(summary, 'decode', BEAM_LAYERS)}")  # fmt: skip
        except ValueError as error:
            lines.append(f"  launch model: {error}")
        overhead = summary["overhead"]
        lines.append(f"  metering: {overhead['microseconds_per_event']} us an event, "
                     f"{overhead['share_of_step_time']:.0%} of the time in steps")  # fmt: skip
    return lines or ["  no meter summary was left behind"]


def report(
    results: list[dict[str, Any]], meters: list[dict[str, Any]], phases: list[tuple[str, float]], architecture: str
) -> str:
    """The table as text. `results`: what, ok, shown; `phases`: name and seconds in order."""
    lines = [
        "",
        f"Emulated Gaudi 2, tiny {architecture} with random weights: the words mean nothing, the path is real.",
        "",
    ]
    for result in results:
        shown = result["shown"] if len(result["shown"]) <= 90 else result["shown"][:87] + "..."
        lines.append(f"  {'ok  ' if result['ok'] else 'FAIL'} {result['what']:<18} {shown}")
    lines += ["", "Counted by the emulated card:", *meter_lines(meters), "", "Seconds:"]
    lines += [f"  {name:<18} {seconds:7.1f}" for name, seconds in phases]
    lines.append(f"  {'total':<18} {sum(seconds for _, seconds in phases):7.1f}")
    return "\n".join(lines)
