# SPDX-License-Identifier: Apache-2.0
"""What a server showed when it was first asked, for gates that compare it with itself later.

One file a gate and server, beside the ledger: what was built may be cleaned away, what was seen may not, or the next
broken build would be recorded as the good one. A record is written whole or not at all, and never written over; to
accept a change, delete the file that the verdict names.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gates.core.errors import GateError
from gates.core.gate import Context
from gates.core.result import GateResult, Measurement, Verdict

SCHEMA = 1
NOTHING_YET = "recorded, nothing to compare with yet"

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """The record of one gate for one server.

    Attributes:
        key: what the gate's figure depends on; another key is another record.
        path: where it lies.
    """

    gate: str
    key: dict[str, Any]
    path: Path

    def read(self, parse: Callable[[Any], T]) -> T | None:
        """The recorded value as `parse` makes it of the JSON value; None where there is no record yet.

        Raises:
            GateError: the file cannot be read, or `parse` raises ValueError, TypeError or KeyError on it.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA or data["gate"] != self.gate or data["key"] != self.key:
                raise ValueError("of another gate, server or schema")
            return parse(data["value"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise GateError(
                f"the record is damaged ({type(error).__name__}: {error})",
                where=str(self.path),
                action="put it back, or delete it to record anew",
            ) from error

    def keep(self, value: Any) -> None:
        """Write the first value.

        Raises:
            GateError: the place cannot be written to.
        """
        data = {"schema": SCHEMA, "gate": self.gate, "key": self.key, "value": value}
        data["recorded"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        name = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with open(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(data, indent=1, sort_keys=True) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except OSError as error:
            if name is not None:
                Path(name).unlink(missing_ok=True)
            raise GateError(
                f"cannot keep the record ({error.strerror})", where=str(self.path), action="see --ledger: it lies there"
            ) from error

    def first(self, value: Any, measurement: Measurement | None = None, **details: Any) -> GateResult:
        """Keep the first value: SKIP, as nothing was compared."""
        self.keep(value)
        told = {**details, "recorded": str(self.path)}
        return GateResult(self.gate, Verdict.SKIP, NOTHING_YET, measurement, details=told)


def of(ctx: Context, gate: str, **depends_on: Any) -> Record:
    """The record of a gate for the server under test.

    Args:
        depends_on: JSON values that the gate's figure depends on, besides the model and the server's arguments. Where
            these are not told (`--server-args`), the address stands for them.
    """
    server = ctx.server_args or ctx.client.root
    key = json.loads(json.dumps({"model": ctx.facts.model, "server": server, **depends_on}))
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return Record(gate, key, ctx.records / f"{gate}-{digest}.json")
