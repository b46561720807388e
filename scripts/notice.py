# SPDX-License-Identifier: Apache-2.0
"""The NOTICE of a rebuilt wheel: which of the upstream's files were changed, as Apache-2.0 section 4(b) asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_VERBS = {"M": "changed", "A": "added", "D": "removed", "T": "changed"}


@dataclass(frozen=True)
class Change:
    """One file of a patched tree that differs from the pristine one; `kind` is git's status letter (M, A, D or T)."""

    kind: str
    path: str


def parse_changes(name_status: str) -> list[Change]:
    """Read the output of `git diff --name-status --no-renames -z`. Raises ValueError for any other status."""
    fields = name_status.split("\0")[:-1]
    if len(fields) % 2:
        raise ValueError("odd number of fields in `git diff --name-status -z`")
    changes = [Change(kind, path) for kind, path in zip(fields[::2], fields[1::2], strict=True)]
    for change in changes:
        if change.kind not in _VERBS:
            raise ValueError(f"unexpected git status {change.kind!r} for {change.path}")
    return sorted(changes, key=lambda change: change.path)


def render(upstream: Mapping[str, str], changes: Sequence[Change], touched_by: Mapping[str, Sequence[str]]) -> str:
    """Text of the NOTICE.

    `upstream`: name, version, source and pin of the original work. `touched_by`: path to the names of the patches that
    change it, in series order; a path without an entry was laid over as a whole.
    """
    lines = [
        "vllm-gaudi-frontier",
        "",
        "Built with Muse Spark Open.",
        "",
        f"This is a modified version of {upstream['name']} {upstream['version']},",
        f"  from {upstream['source']}",
        f"  at {upstream['pin']},",
        "used under the Apache License, version 2.0; its copyright notices stay in its files. The changes are under",
        "the same licence. Section 4(b) asks that changed files be named:",
    ]
    for verb, title in (("changed", "Changed"), ("removed", "Removed"), ("added", "Added")):
        chosen = [change for change in changes if _VERBS[change.kind] == verb]
        lines += ["", f"{title} ({len(chosen)}):"] + ([] if chosen else ["  none"])
        for change in chosen:
            by = ", ".join(touched_by.get(change.path, ()))
            lines.append(f"  {change.path}" + (f"  ({by})" if by else ""))
    return "\n".join(lines) + "\n"
