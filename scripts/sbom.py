# SPDX-License-Identifier: Apache-2.0
"""Write a CycloneDX bill of materials for the rebuilt wheels; runs in the build environment (`requirements/build.txt`).

Each wheel is a component with its digest, its pedigree (the upstream release it descends from and the digest of every
patch) and its dependencies, at the versions the serving list pins. The document is validated against the schema.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.environment import pins

_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "vllm-gaudi-frontier")


def bill(wheels: list[Path], record: Mapping[str, Any], tested: Mapping[str, str], epoch: int) -> Bom:
    """Bill of materials of `wheels`.

    `record`: the distribution record inside the wheels. `tested`: normalised name to pinned version of the serving
    environment. `epoch`: the document's time, seconds since 1970.
    """
    bom = Bom(
        serial_number=uuid.uuid5(_SPACE, record["lock_hash"]),
        metadata=None,
    )
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
    root = Component(
        name=record["name"], version=record["version"], type=ComponentType.APPLICATION, bom_ref="distribution"
    )
    root.properties.add(Property(name="lock-hash", value=record["lock_hash"]))
    bom.metadata.component = root
    ours: dict[str, tuple[Component, list[str]]] = {}
    for path in wheels:
        name, version, requires = _metadata(path)
        upstream = next(
            item for item in record["upstreams"] if canonicalize_name(item["name"]) == canonicalize_name(name)
        )
        ours[canonicalize_name(name)] = (_wheel_component(path, name, version, upstream), requires)
    needed = sorted({req for _, requires in ours.values() for req in requires} - set(ours))
    libraries = {name: _library(name, tested.get(name)) for name in needed}
    for component in [*libraries.values(), *(component for component, _ in ours.values())]:
        bom.components.add(component)
    for component, requires in ours.values():
        bom.register_dependency(component, [libraries[name] for name in requires if name in libraries])
    bom.register_dependency(root, [component for component, _ in ours.values()])
    return bom


def _metadata(wheel: Path) -> tuple[str, str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    requires = [Requirement(text) for text in headers.get_all("Requires-Dist", [])]
    unconditional = [req for req in requires if req.marker is None or "extra" not in str(req.marker)]
    return headers["Name"], headers["Version"], sorted({canonicalize_name(req.name) for req in unconditional})


def _wheel_component(path: Path, name: str, version: str, upstream: Mapping[str, Any]) -> Component:
    ancestor = Component(name=upstream["name"], version=upstream["version"], purl=_upstream_purl(upstream))
    patches = [
        Patch(
            type=PatchClassification.UNOFFICIAL,
            diff=Diff(text=AttachedText(content=f"{patch['name']}: {patch['subject']} (sha256 {patch['sha256']})")),
        )
        for patch in upstream["patches"]
    ]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{canonicalize_name(name)}@{version}",
        purl=PackageURL("pypi", None, canonicalize_name(name), version),
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())],
        pedigree=Pedigree(ancestors=[ancestor], patches=patches),
    )


def _upstream_purl(upstream: Mapping[str, Any]) -> PackageURL:
    if upstream.get("commit"):
        return PackageURL("github", "vllm-project", upstream["name"], upstream["commit"])
    return PackageURL("pypi", None, upstream["name"], upstream["version"])


def _library(name: str, version: str | None) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=name,
        purl=PackageURL("pypi", None, name, version),
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.sbom", description="CycloneDX bill of materials")
    parser.add_argument("--record", type=Path, required=True, help="the distribution record, JSON")
    parser.add_argument("--requirements", type=Path, required=True, help="pinned list of the serving environment")
    parser.add_argument("--epoch", type=int, required=True, help="time of the document, seconds since 1970")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("wheels", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    record = json.loads(options.record.read_text())
    text = JsonV1Dot6(bill(options.wheels, record, pins(options.requirements), options.epoch)).output_as_string(
        indent=2
    )
    problems = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problems:
        print(f"the bill of materials does not meet CycloneDX 1.6: {problems}", file=sys.stderr)
        return 1
    options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
