# SPDX-License-Identifier: Apache-2.0
"""What this installation was built from: `distribution.json`, generated into both wheels.

Standard library only, and nothing of vllm or torch is imported: the record must be readable where those are broken.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

FILE = "distribution.json"
_PACKAGES = ("vllm", "vllm_gaudi")
_logged = False


class RecordError(RuntimeError):
    """The installed wheels carry no record, an unreadable one, or do not belong together."""


def load(package: str = "vllm_gaudi") -> dict[str, Any]:
    """The record inside installed `package`: name, version, lock_hash, upstreams. Raises RecordError."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RecordError(f"{package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} is missing: {package} was not installed from a wheel of `make wheels`") from None
    except ValueError as error:
        raise RecordError(f"{path} is not readable JSON: {error}") from None
    return record


def pair() -> dict[str, Any]:
    """The record both wheels share. Raises RecordError when one is absent or they come from different locks."""
    records = {package: load(package) for package in _PACKAGES}
    hashes = {package: record.get("lock_hash") for package, record in records.items()}
    if len(set(hashes.values())) != 1:
        found = ", ".join(f"{package} {str(value)[:12]}" for package, value in hashes.items())
        raise RecordError(f"the installed wheels come from different locks ({found}); install both from one build")
    return records["vllm_gaudi"]


def summary(record: dict[str, Any]) -> str:
    """One line for a log."""
    parts = [f"{item['name']} {item['version']} + {len(item['patches'])} patches" for item in record["upstreams"]]
    built_from = f"lock {record['lock_hash'][:12]}; {'; '.join(parts)}"
    return f"{record['name']} {record['version']} ({built_from}). Built with Muse Spark Open."


def log_once() -> None:
    """Log the summary in the server's first process; a broken record is a warning there, never a failed start."""
    global _logged
    if _logged or multiprocessing.parent_process() is not None:
        return
    _logged = True
    logger = logging.getLogger("vllm.vllm_gaudi.distribution")  # below "vllm", whose handlers the server configures
    try:
        logger.info(summary(pair()))
    except RecordError as error:
        logger.warning("Unknown distribution: %s", error)
