# SPDX-License-Identifier: Apache-2.0
"""Is the installation the one that was built? Run inside the image, and by its build, before anything is served.

Standard library only, one file, copied into the image. Two verbs:

    image_check.py constraints --record distribution.json --requirements image.txt --keep torch    # on stdout
    image_check.py verify      --record distribution.json --constraints constraints.txt [--import "MODULE …"]

`verify` compares every constraint with what is installed, the installed record with the one the wheels were built
with, and each file of the two wheels with its RECORD. It prints one line per fault and exits 1 if there was any.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

WHEELS = {"vllm": "vllm", "vllm-gaudi": "vllm_gaudi"}  # distribution name to package folder


def normalise(name: str) -> str:
    """PEP 503 form of a distribution name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Normalised name to version from `name==version` lines, comments skipped. Raises ValueError."""
    pins: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        name, equals, version = line.partition("==")
        if not equals or not version.strip():
            raise ValueError(f"line {number} is not `name==version`: {line}")
        pins[normalise(name.strip())] = version.strip()
    return pins


def installed() -> dict[str, str]:
    """Normalised name to version of all distributions in sight; the first on the path wins, as in imports."""
    found: dict[str, str] = {}
    for dist in metadata.distributions():
        found.setdefault(normalise(dist.metadata["Name"]), dist.version)
    return found


def constraints(requirements: str, record: dict[str, Any], keep: list[str]) -> str:
    """A constraints file: the pinned list, the two wheels, and `keep` at the versions the base image has.

    Raises ValueError when the base image lacks one of `keep`.
    """
    pins = read_pins(requirements)
    have = installed()
    for name in keep:
        if normalise(name) not in have:
            raise ValueError(f"the base image has no {name}; this is not a Gaudi PyTorch image")
        pins[normalise(name)] = have[normalise(name)]
    pins.update(dict.fromkeys(WHEELS, record["version"]))
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def wrong_versions(pins: dict[str, str]) -> Iterator[str]:
    """One line per pinned distribution that is missing or has another version."""
    have = installed()
    for name, version in pins.items():
        if name not in have:
            yield f"{name}: {version} wanted, not installed"
        elif have[name] != version:
            yield f"{name}: {version} wanted, {have[name]} installed"


def wrong_records(record: dict[str, Any]) -> Iterator[str]:
    """One line per wheel whose installed record is absent or names another lock."""
    for name, package in WHEELS.items():
        try:
            path = Path(str(metadata.distribution(name).locate_file(f"{package}/distribution.json")))
            found = json.loads(path.read_text(encoding="utf-8"))["lock_hash"]
        except metadata.PackageNotFoundError:
            yield f"{name}: not installed"
        except (OSError, ValueError, KeyError):
            yield f"{name}: no readable distribution.json; this is not a wheel of `make wheels`"
        else:
            if found != record["lock_hash"]:
                yield f"{name}: lock {record['lock_hash'][:12]} wanted, {found[:12]} installed"


def wrong_files() -> Iterator[str]:
    """One line per file of the two wheels that is missing or differs from its RECORD."""
    for name in WHEELS:
        try:
            files = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError:
            continue  # reported by wrong_records
        for file in files:
            if file.hash is None or file.suffix == ".pyc":
                continue
            try:
                digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
            except OSError:
                yield f"{name}: {file} is missing"
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                yield f"{name}: {file} differs from what the wheel installed"


def failed_imports(modules: list[str]) -> Iterator[str]:
    """One line per module that does not import."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever it raises, the image cannot serve
            yield f"import {module}: {type(error).__name__}: {error}"


def verify(pins: dict[str, str], record: dict[str, Any], modules: list[str]) -> list[str]:
    """All faults found, empty for the installation that was built."""
    return [*wrong_versions(pins), *wrong_records(record), *wrong_files(), *failed_imports(modules)]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="image_check", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("constraints", help="print a constraints file")
    write.add_argument("--requirements", type=Path, required=True)
    write.add_argument("--keep", default="", metavar="NAMES", help="distributions whose installed version stays")
    test = verbs.add_parser("verify", help="compare the installation")
    test.add_argument("--constraints", type=Path, required=True)
    test.add_argument("--import", dest="modules", default="", metavar="MODULES", help="modules that must import")
    for verb in (write, test):
        verb.add_argument("--record", type=Path, required=True, help="distribution.json of the wheels")
    options = parser.parse_args(arguments)
    try:
        record = json.loads(options.record.read_text(encoding="utf-8"))
        if options.verb == "constraints":
            print(constraints(options.requirements.read_text(encoding="utf-8"), record, options.keep.split()), end="")
            return 0
        faults = verify(read_pins(options.constraints.read_text(encoding="utf-8")), record, options.modules.split())
    except (OSError, ValueError, KeyError) as error:
        print(f"image_check: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"FAIL {fault}")
    print(f"{record['name']} {record['version']}: " + (f"{len(faults)} faults" if faults else "installed as built"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
