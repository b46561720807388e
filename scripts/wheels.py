# SPDX-License-Identifier: Apache-2.0
"""`wheels`: both wheels, their record and their bill of materials in dist/, or nothing to do when they are there.

dist/ holds one pair and is replaced as a whole. `wheels.json`, written into it last, says what it was built from and
what each file's digest is; a file that was touched, or any input that changed, builds again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scripts import environment, git, lockfile, record, stack, wheel_build, worktree
from scripts.console import data, note
from scripts.errors import Exit, ToolError
from scripts.fetching import ensure_base
from scripts.lockfile import Lock
from scripts.locking import exclusive
from scripts.paths import Project
from scripts.stack import Patch, Stack
from scripts.swap import recover, swap_in

MANIFEST = "wheels.json"
ZIP_END = 4354819200  # 2108-01-01T00:00:00Z, the first time a zip entry cannot hold
_OWN_SOURCES = ("wheels.py", "wheel_build.py", "wheel_repack.py", "notice.py", "record.py", "sbom.py")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--build-python", metavar="PATH", help="interpreter of the build environment (default: python3.11)"
    )


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the path of each wheel."""
    for wheel in build(project, args.build_python).wheels.values():
        data(str(wheel.relative_to(project.root)))
    return Exit.OK


@dataclass(frozen=True)
class Built:
    """What lies in dist/: the wheels by upstream name, and whether this run had to build them."""

    wheels: dict[str, Path]
    fresh: bool


def source_date(stacks: Mapping[str, Stack]) -> int:
    """Time of every archive entry: SOURCE_DATE_EPOCH where set, else the newest patch's Last-Update (midnight UTC)."""
    if chosen := os.environ.get("SOURCE_DATE_EPOCH"):
        if not re.fullmatch("[0-9]{1,10}", chosen) or int(chosen) >= ZIP_END:
            raise ToolError(
                f"SOURCE_DATE_EPOCH is {chosen[:40]!r}, not whole seconds since 1970 and before 2108, where zip ends",
                where="environment",
                action="set it to such a number, or unset it",
            )
        return int(chosen)
    dates = [_date(upstream, patch) for upstream, item in stacks.items() for patch in item.patches]
    return max(dates, default=946684800)  # 2000-01-01


def _date(upstream: str, patch: Patch) -> int:
    """Last-Update of a patch, midnight UTC. Raises ToolError when it is no date."""
    stated = patch.header.get("Last-Update")
    try:
        return int(datetime.strptime(stated, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp())
    except ValueError as exc:
        raise ToolError(
            f"Last-Update of patch `{patch.name}` is no date: {stated[:40]!r}",
            where=f"patches/{upstream}/{patch.name}.patch",
            action="write YYYY-MM-DD, then run `python -m scripts lock`; `python -m scripts lint` has the other rules",
        ) from exc


def inputs(lock: Lock, epoch: int) -> dict[str, Any]:
    """Everything that decides the bytes of dist/."""
    own = hashlib.sha256()
    for name in _OWN_SOURCES:
        own.update(Path(__file__).with_name(name).read_bytes())
    env = environment.ENVIRONMENTS["build"]
    lists = [environment.ENVIRONMENTS[name].requirements for name in ("build", "serve")]
    for path in lists:
        own.update((environment.ROOT / path).read_bytes())
    return {"lock_hash": lock.hash, "epoch": epoch, "builder": own.hexdigest(), "environment": env.folder}


def current(dist: Path, wanted: Mapping[str, Any]) -> Built | None:
    """The pair in `dist` if it was built from `wanted` and every file still has its digest, else None."""
    try:
        manifest = json.loads((dist / MANIFEST).read_text())
        if manifest["inputs"] != wanted:
            return None
        for name, digest in manifest["files"].items():
            if _sha256(dist / name) != digest:
                return None
        return Built({name: dist / file for name, file in manifest["wheels"].items()}, fresh=True)
    except (OSError, ValueError, KeyError):
        return None


def in_dist(project: Project) -> dict[str, Path]:
    """The wheels of the last finished build by upstream name; empty when dist/ holds none or a file was touched."""
    try:
        wanted = json.loads((project.root / "dist" / MANIFEST).read_text())["inputs"]
    except (OSError, ValueError, KeyError):
        return {}
    found = current(project.root / "dist", wanted)
    return found.wheels if found else {}


def build(project: Project, python: str | None = None) -> Built:
    """Bring dist/ up to date with the lock; `python` names the building interpreter. Raises ToolError."""
    lock = lockfile.load(project)
    lockfile.check_hash(lock)
    stacks = {name: _locked_stack(project, lock, name) for name in lock.upstreams}
    epoch = source_date(stacks)
    wanted = inputs(lock, epoch)
    dist = project.root / "dist"
    with exclusive(project.build / ".dist.lock"):
        recover(dist)
        if found := current(dist, wanted):
            note(f"wheels: {record.version(lock)} is in dist/ and unchanged")
            return found
        repos = {name: _locked_tree(project, lock, stacks[name]) for name in lock.upstreams}
        env = environment.ensure("build", python)
        scratch = Path(tempfile.mkdtemp(prefix=".new-dist-", dir=project.root))
        try:
            names = _fill(scratch, lock, stacks, repos, env.interpreter, epoch)
            files = {path.name: _sha256(path) for path in sorted(scratch.iterdir())}
            manifest = {"inputs": wanted, "files": files, "wheels": names}
            (scratch / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
            scratch.chmod(0o755)
            swap_in(scratch, dist)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Built({name: dist / file for name, file in names.items()}, fresh=False)


def _fill(
    folder: Path, lock: Lock, stacks: Mapping[str, Stack], repos: Mapping[str, Path], python: Path, epoch: int
) -> dict[str, str]:
    """Build all into `folder`; returns upstream name to wheel file name."""
    facts = record.build(lock, stacks)
    (folder / "distribution.json").write_bytes(record.render(facts))
    names: dict[str, str] = {}
    for number, upstream in enumerate(facts["upstreams"], 1):
        name = upstream["name"]
        started = time.monotonic()
        note(f"wheels: [{number}/{len(repos)}] {name} {facts['version']} …")
        wheel = wheel_build.build(
            repos[name], upstream, stacks[name], facts, python=python, epoch=epoch, out_dir=folder
        )
        names[name] = wheel.name
        spent = time.monotonic() - started
        note(f"wheels: [{number}/{len(repos)}] {wheel.name}: {wheel.stat().st_size:,} B, {spent:.1f} s")
    bill = folder / f"{record.NAME}-{facts['version']}.cdx.json"
    command = [str(python), "-m", "scripts.sbom", "--record", str(folder / "distribution.json"), "--epoch", str(epoch)]
    command += ["--requirements", str(environment.ROOT / "requirements/serve.txt"), "--out", str(bill)]
    command += [str(folder / name) for name in names.values()]
    if subprocess.run(
        command, cwd=environment.ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    ).returncode:
        raise ToolError("the bill of materials could not be written", where=str(bill), action="see the message above")
    return names


def _locked_stack(project: Project, lock: Lock, name: str) -> Stack:
    """Series, patches and overlay of `name`. Raises ToolError when they are not the locked ones."""
    loaded = stack.load(project, name)
    if loaded.digest != lock.upstreams[name].digest:
        raise ToolError(
            f"patches or overlay of `{name}` are not the locked ones",
            where=str(project.lock),
            action="see `python -m scripts lock --check`; after an intended change run `python -m scripts lock`",
        )
    return loaded


def _locked_tree(project: Project, lock: Lock, loaded: Stack) -> Path:
    """The repository of the patched tree, built where needed. Raises ToolError when it is not the locked one."""
    upstream = lock.upstreams[loaded.upstream]
    with exclusive(project.build / "trees.lock"):
        worktree.build(project, upstream, loaded, ensure_base(project, upstream), force=False)
    repo = project.tree(upstream.name)
    found = git.text(repo, "rev-parse", "HEAD^{tree}")
    if found != upstream.patched_tree:
        raise ToolError(
            f"the tree of `{upstream.name}` is {found[:12]}, the lock says {upstream.patched_tree[:12]}",
            where=str(repo),
            action="if you have commits there, run `python -m scripts export` and `python -m scripts lock` first",
        )
    return repo


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
