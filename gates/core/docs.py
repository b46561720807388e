# SPDX-License-Identifier: Apache-2.0
"""`python -m gates.core.docs`: the tables of docs/gates.md, from the gates and thresholds themselves."""

from __future__ import annotations

from gates.core import gate, thresholds

BEGIN, END = "<!-- generated: python -m gates.core.docs -->", "<!-- end -->"


def tables() -> str:
    """Markdown: every gate, then every threshold with its source and the port pages' value."""
    lines = ["| gate | category | passes when | red on |", "|---|---|---|---|"]
    for entry in gate.discover().values():
        lines.append(f"| `{entry.name}` | {entry.category} | {entry.summary} | {', '.join(entry.faults) or '-'} |")
    names = ("gate", "limit", "unit", "floor", "port pages", "source", "reason")
    lines += ["", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for limit in thresholds.load().values():
        side = "at most" if limit.direction == "max" else "at least"
        page = "-" if limit.port_page is None else f"{limit.port_page:g}"
        lines.append(
            f"| `{limit.gate}` | {side} {limit.value:g} | {limit.unit} | {limit.floor or '-'} | {page} "
            f"| {limit.source} | {limit.reason} |"
        )
        for name, other in limit.profiles.items():
            value = f"{side} {other['value']:g}"
            lines.append(
                f"| `{limit.gate}` ({name}) | {value} | {limit.unit} | as above | - | measured | {other['reason']} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
