# SPDX-License-Identifier: Apache-2.0
"""The ledger: JSON lines, one header per run and one line per finished gate, appended and flushed as they finish.

A run that was killed is resumed from its ledger: a gate with a result line is not repeated. A torn last line (the
process died while writing) is dropped with a note; a torn line anywhere else is an error, since it means the file was
edited or mixed.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gates.core.errors import GateError
from gates.core.result import SCHEMA_VERSION, GateResult, Verdict, dumps, from_json


@dataclass
class Run:
    """One run: what was asked of which server, and what came out, in order."""

    header: dict[str, Any]
    results: dict[str, GateResult] = field(default_factory=dict)

    @property
    def lock_hash(self) -> str:
        return str(self.header.get("server", {}).get("lock_hash") or "unknown")


def _parse(path: Path) -> list[Run]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise GateError(
            f"cannot read the ledger ({error.strerror})", where=str(path), action="check the path"
        ) from error
    runs: list[Run] = []
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == len(lines):  # no newline after it: torn by a kill while writing
                break
            raise GateError("not a JSON object", where=where, action="restore the file or remove the line") from error
        schema = data.get("schema")
        if not isinstance(schema, int):
            raise GateError("no schema version", where=where, action="this is not a gate ledger")
        if schema > SCHEMA_VERSION:
            raise GateError(
                f"ledger schema {schema} is newer than {SCHEMA_VERSION}, the newest this checkout reads",
                where=where,
                action="update the checkout, or write to another ledger",
            )
        if data.get("kind") == "run":
            runs.append(Run(header={k: v for k, v in data.items() if k not in ("kind", "schema")}))
        elif data.get("kind") == "result":
            if not runs:
                raise GateError("a result before any run header", where=where, action="restore the file")
            result = from_json(data, where=where)
            runs[-1].results[result.gate] = result
        else:
            raise GateError(f"unknown line kind {data.get('kind')!r}", where=where, action="restore the file")
    return runs


def load(path: Path) -> list[Run]:
    """All runs of a ledger, oldest first."""
    return _parse(path)


class Writer:
    """Appends to a ledger; every line reaches the disk before the next gate starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def _append(self, data: Mapping[str, Any]) -> None:
        line = (dumps(data) + "\n").encode()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":  # a torn line: cut it, it never counted
                    whole = self.path.read_bytes()
                    os.ftruncate(fd, whole.rfind(b"\n") + 1)
                os.write(fd, line)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise GateError(
                f"cannot write the ledger ({error.strerror})",
                where=str(self.path),
                action="free space or choose --ledger",
            ) from error

    def start(self, header: Mapping[str, Any]) -> Run:
        """Write a run header and return the empty run."""
        stamped = {"started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **header}
        self._append({"kind": "run", "schema": SCHEMA_VERSION, **stamped})
        return Run(header=stamped)

    def add(self, run: Run, result: GateResult) -> None:
        self._append({"kind": "result", "schema": SCHEMA_VERSION, **result.to_json()})
        run.results[result.gate] = result


def resumable(path: Path, identity: Mapping[str, Any]) -> Run | None:
    """The last run of this ledger if it asked the same of the same server, else None.

    Args:
        identity: the header fields that must be equal (`base_url`, `model`, `server`, `profile`).
    Results with ERROR are dropped from the resumed run: the gate broke, so it is tried again.
    """
    if not path.exists():
        return None
    runs = load(path)
    if not runs:
        return None
    last = runs[-1]
    if any(last.header.get(k) != v for k, v in identity.items()):
        return None
    last.results = {k: v for k, v in last.results.items() if v.verdict is not Verdict.ERROR}
    return last
