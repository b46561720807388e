# SPDX-License-Identifier: Apache-2.0
"""The ledger: JSON lines, a header per run, a line per finished gate, an end per finished run; flushed as they come.

A run that was killed has no end: the next one that asks the same goes on with it and repeats no gate that has a
verdict. What stands between them does not matter: a run that another one followed is written anew, with what it had.
A last line without its newline (the process died while writing it) never counted: it is cut off by the next run; a torn
line anywhere else is an error, since it means the file was edited or mixed.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gates.core.errors import GateError
from gates.core.result import READABLE, SCHEMA_VERSION, GateResult, Verdict, dumps, from_json

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # a file system that has none
_NO_LEDGER = "choose another --ledger, or move the file away"
_BEGINNING = b'{"kind": "run"'  # of a ledger
_OF_ONE_RUN = ("started", "since", "only")  # header fields that runs which are shown together may differ in
LONGEST_PAUSE = datetime.timedelta(days=1)  # of a killed run: what it saw is no word on the server of today any more


@dataclass
class Run:
    """One run: what was asked of which server, what came out, in order, and whether it came to its end."""

    header: dict[str, Any]
    results: dict[str, GateResult] = field(default_factory=dict)
    ended: bool = False

    @property
    def server(self) -> dict[str, Any]:
        return self.header.get("server") or {}

    @property
    def lock_hash(self) -> str:
        return str(self.server.get("lock_hash") or "unknown")

    def same(self, identity: Mapping[str, Any]) -> bool:
        """Whether it asked what `identity` (header fields) asks."""
        return all(self.header.get(key) == value for key, value in identity.items())

    @property
    def stale(self) -> bool:
        """Whether its last result is older than `LONGEST_PAUSE`, or of an unknown age."""
        try:
            started = datetime.datetime.fromisoformat(str(self.header.get("since", self.header["started"])))
            seen = started + datetime.timedelta(seconds=math.fsum(r.duration_s for r in self.results.values()))
            return datetime.datetime.now(datetime.timezone.utc) - seen > LONGEST_PAUSE
        except (KeyError, ValueError, TypeError, OverflowError):
            return True


def _parse(raw: bytes, path: Path) -> tuple[list[Run], int | None]:
    """Runs, oldest first, and the offset of a torn last line."""
    runs: list[Run] = []
    *lines, tail = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            _line(line, f"{path}:{number}", runs)
    if not tail:
        return runs, None
    if not runs and not tail.startswith(_BEGINNING):
        raise GateError("not a gate ledger", where=f"{path}:1", action=_NO_LEDGER)
    return runs, len(raw) - len(tail)


def _line(line: bytes, where: str, runs: list[Run]) -> None:
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise GateError("not a JSON object", where=where, action="restore the file or remove the line") from error
    schema, kind = data.get("schema"), data.get("kind")
    if type(schema) is not int:
        raise GateError("no schema version: not a gate ledger", where=where, action=_NO_LEDGER)
    if schema > SCHEMA_VERSION:
        raise GateError(
            f"ledger schema {schema} is newer than {SCHEMA_VERSION}, the newest this checkout reads",
            where=where,
            action="update the checkout, or write to another ledger",
        )
    if schema not in READABLE:
        raise GateError(f"ledger schema {schema} is unknown", where=where, action=_NO_LEDGER)
    if kind == "run":
        header = {k: v for k, v in data.items() if k not in ("kind", "schema")}
        if not isinstance(header.get("server", {}), dict):
            raise GateError("`server` is no object", where=where, action="restore the file")
        runs.append(Run(header))
    elif kind not in ("result", "end"):
        raise GateError(f"unknown line kind {kind!r}", where=where, action="restore the file")
    elif not runs:
        raise GateError(f"a line of kind {kind} before any run header", where=where, action="restore the file")
    elif kind == "end":
        runs[-1].ended = True
    else:
        result = from_json(data, where=where)
        runs[-1].results[result.gate] = result


def load(path: Path) -> list[Run]:
    """All runs of a ledger, oldest first.

    Raises:
        GateError: unreadable, no ledger, damaged, or of a newer schema.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise GateError(
            f"cannot read the ledger ({error.strerror})", where=str(path), action="check the path"
        ) from error
    return _parse(raw, path)[0]


def newest(runs: Sequence[Run]) -> Run:
    """The last run, with gates it was not asked for taken from earlier runs that asked the same server for the same.

    Results of an earlier run say so in their reason.
    """
    last = runs[-1]
    identity = {k: v for k, v in last.header.items() if k not in _OF_ONE_RUN}
    results: dict[str, GateResult] = {}
    for run in runs:
        if run is last or run.same(identity):
            results |= {
                k: v if run is last else v.of_run(str(run.header.get("started"))) for k, v in run.results.items()
            }
    return Run(last.header, results, last.ended)


class Writer:
    """Appends to a ledger that no other run writes; every line reaches the disk before the next gate starts.

    Attributes:
        runs: what the ledger held.
        torn: whether it ended in a line that never counted.

    Raises:
        GateError: unwritable, no ledger, damaged, of a newer schema, or written by another run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk refused must not be tried again, and fail again, at close.
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held, with its lock, until close
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock()
            self._file.seek(0)
            self.runs, self._torn = _parse(self._file.read(), path)
        except BaseException:
            self._file.close()
            raise
        self.torn = self._torn is not None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GateError(
                "another run is writing this ledger",
                where=str(self.path),
                action="wait for it, or choose another --ledger",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> GateError:
        text = f"cannot write the ledger ({error.strerror})"
        return GateError(text, where=str(self.path), action="free space or choose --ledger")

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another run write."""
        self._file.close()

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        line = (dumps({"kind": kind})[:-1] + ", " + dumps({"schema": SCHEMA_VERSION, **data})[1:] + "\n").encode()
        try:
            if self._torn is not None:
                self._file.truncate(self._torn)
                self._torn = None
            start = self._file.seek(0, os.SEEK_END)
            try:
                left = memoryview(line)
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._torn = start
                with contextlib.suppress(OSError):  # the next append, or the next run, drops it otherwise
                    self._file.truncate(start)
                    self._torn = None
                raise
        except OSError as error:
            raise self._unwritable(error) from error

    def start(self, header: Mapping[str, Any]) -> Run:
        """Write a run header and return the empty run."""
        stamped = {"started": _now(), **header}
        self._append("run", stamped)
        return Run(header=stamped)

    def add(self, run: Run, result: GateResult) -> None:
        """Write one result."""
        self._append("result", result.to_json())
        run.results[result.gate] = result

    def end(self, run: Run) -> None:
        """Write that the run asked all it was to ask."""
        self._append("end", {"finished": _now()})
        run.ended = True

    def resumable(self, identity: Mapping[str, Any], *, again: bool = False) -> Run | None:
        """The last run that asked the same of the same server, if it was killed; without what it could not judge.

        Args:
            identity: the header fields that must be equal, and which gates were chosen.
            again: also a run that came to its end.
        """
        last = next((run for run in reversed(self.runs) if run.same(identity)), None)
        if last is None or (last.ended and not again):
            return None
        judged = {k: v for k, v in last.results.items() if v.verdict in (Verdict.PASS, Verdict.FAIL)}
        return Run(last.header, judged)

    def resume(self, run: Run) -> Run:
        """Go on with a run that `resumable` gave: where it ends the file, else as a new one with its results.

        A line belongs to the header above it, so that a run which another one followed cannot be appended to.
        """
        if self.runs and self.runs[-1].header is run.header:
            return run
        begun = str(run.header.get("started"))
        anew = self.start({"since": begun, **{k: v for k, v in run.header.items() if k != "started"}})
        for result in run.results.values():
            self.add(anew, result.of_run(begun))
        return anew


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
