# SPDX-License-Identifier: Apache-2.0
"""What only the server's log tells: hashes of the loaded state, configurations met after the warm-up.

A log may hold several starts of the server; the last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gates.core.errors import GateError

_READY = "Application startup complete"
_STATE = re.compile(r"state hash of tensor-parallel rank (\d+) of (\d+): ([0-9a-f]{64})")
_COLD = re.compile(r"Configuration: (.+?) was not warmed-up")
_EAGER = re.compile(r"\benforce_eager=(True|False)")
_ENGINE = "Initializing a V1 LLM engine"


@dataclass(frozen=True)
class LogFacts:
    """Facts of the last start in a log.

    Attributes:
        ready: the server said that it is up.
        eager: whether the engine runs without graphs; None where the log does not say.
        states: state hash by tensor-parallel rank; empty where hashing was off.
        ranks: ranks there should be.
        cold: configurations that were met after the server was ready and not warmed up before.
    """

    ready: bool
    eager: bool | None
    states: dict[int, str]
    ranks: int
    cold: tuple[str, ...]


def read(path: Path) -> LogFacts:
    """Facts of the last start in the file.

    Raises:
        GateError: the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise GateError(
            f"cannot read the server's log ({error.strerror})", where=str(path), action="give it with --server-log"
        ) from error
    ready, eager, ranks = False, None, 0
    states: dict[int, str] = {}
    cold: list[str] = []
    for line in lines:
        if _ENGINE in line:
            ready, states, cold = False, {}, []
            found = _EAGER.search(line)
            eager = found[1] == "True" if found else None
        elif found := _STATE.search(line):
            states[int(found[1])], ranks = found[3], int(found[2])
        elif _READY in line:
            ready, cold = True, []
        elif found := _COLD.search(line):
            cold.append(found[1])
    return LogFacts(ready, eager, states, ranks, tuple(cold))
