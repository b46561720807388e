# SPDX-License-Identifier: Apache-2.0
"""Plots by context rung as SVG text: points, band, threshold and floor told apart by shape, not by colour alone."""

from __future__ import annotations

import io

from gates.report.collect import Series, number


def svg(series: Series) -> str:
    """One figure as an `<svg>` element (no XML prologue), deterministic for equal input."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # A ledger's text is text: `$` begins no formula.
    settings = {"svg.hashsalt": series.gate, "font.size": 9, "svg.fonttype": "none", "text.parse_math": False}
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(4.6, 2.6))
        axes.plot(series.rungs, series.values, marker="o", color="black", linewidth=1.2, label="measured")
        if series.low and series.high:
            axes.fill_between(series.rungs, series.low, series.high, color="0.85", label="median to 99 %")
        if series.threshold is not None:
            axes.axhline(series.threshold, color="black", linestyle="--", linewidth=1)
            side = "max" if series.direction == "max" else "min"
            axes.annotate(f"{side} {number(series.threshold)}", (series.rungs[0], series.threshold), va="bottom")
        if series.floor is not None:
            axes.axhline(series.floor, color="0.4", linestyle=":", linewidth=1, label="noise floor")
        axes.set_xscale("log", base=2)
        axes.set_xticks(series.rungs, [f"{r // 1024}K" if r >= 1024 else str(r) for r in series.rungs])
        axes.minorticks_off()
        axes.set_xlabel("context, tokens")
        axes.set_ylabel(series.unit)
        if series.unit == "share":
            axes.set_ylim(-0.03, 1.08)
        axes.set_title(series.gate, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
        figure.tight_layout()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]
