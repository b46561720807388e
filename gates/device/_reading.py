# SPDX-License-Identifier: Apache-2.0
"""Whether an answer names what was asked for, and whether a length that was tried is short of its limit."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gates.core import stats
from gates.core.wording import Wording


def names(wording: Wording, answer: str, value: str, others: Iterable[str]) -> bool:
    """Whether an answer names `value`: a server that says its prompt back, or every fact in it, does not.

    A chat answer may put it into words but may hold none of `others`; a plain continuation runs on after the answer,
    so that its first word (names and numbers joined by `=`) must end with it.
    """
    if wording.chat:
        return value in answer and not any(other in answer for other in others)
    first = re.match(r"\s*([A-Z0-9=]*)", answer)
    return first is not None and first[1].endswith(value)


def short(by_rung: dict[str, list[bool]], limit: float) -> dict[str, str]:
    """Rungs whose share is below the limit beyond chance (95 % interval after Wilson): `{"250000": "0/8"}`.

    The limit on the mean of all rungs would let a long context die unseen among the short ones.
    """
    return {
        rung: f"{sum(hits)}/{len(hits)}"
        for rung, hits in by_rung.items()
        if stats.wilson(sum(hits), len(hits))[1] < limit
    }
