# SPDX-License-Identifier: Apache-2.0
"""One patched tree in, one canonical wheel out.

The tree is read from git objects, not from the work tree, so an unsaved edit can never reach a wheel. The back end
runs in the build environment with a closed set of variables and no index; see `wheel_repack` for what follows.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts import git
from scripts.errors import ToolError
from scripts.notice import parse_changes, render
from scripts.record import render as render_record
from scripts.stack import Stack
from scripts.wheel_repack import RepackError, repack

_LOG_TAIL = 25


@dataclass(frozen=True)
class Recipe:
    """How one upstream is built: its package folder, and what its setup.py reads from the environment."""

    package: str
    variables: dict[str, str]


def recipe(upstream: str, version: str) -> Recipe:
    """The recipe of `upstream`. Raises ToolError for one this project does not build."""
    if upstream == "vllm":
        # Rust is optional upstream and only its absence is the same on every machine: no compiler may be found.
        variables = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version, "CARGO": os.devnull}
        return Recipe("vllm", variables)
    if upstream == "vllm-gaudi":
        return Recipe("vllm_gaudi", {"SETUPTOOLS_SCM_PRETEND_VERSION": version})
    raise ToolError(
        f"no recipe for a wheel of `{upstream}`",
        where="upstream.lock",
        action="add one to scripts/wheel_build.py, or remove the upstream from the lock",
    )


def export(repo: Path, tree: str, target: Path) -> None:
    """Write every file of git tree `tree` below `target`, contents and executable bits exactly as recorded."""
    with git.Objects(repo) as objects:
        for raw, (mode, name) in git.ls_tree(repo, tree).items():
            if mode == "160000":
                continue  # a submodule holds no files here
            path = target / os.fsdecode(raw)
            path.parent.mkdir(parents=True, exist_ok=True)
            data = objects.read(name)
            if mode == "120000":
                path.symlink_to(os.fsdecode(data))
            else:
                path.write_bytes(data)
                path.chmod(0o755 if mode == "100755" else 0o644)


def notice(repo: Path, record: dict[str, object], upstream: dict[str, str], stack: Stack) -> bytes:
    """The NOTICE for `upstream` (its entry in the record), from what differs between base and patched tree."""
    out = git.run(repo, "diff", "--name-status", "--no-renames", "-z", upstream["base_tree"], upstream["patched_tree"])
    touched: dict[str, list[str]] = {}
    for patch in stack.patches:
        for change in patch.changes:
            touched.setdefault(os.fsdecode(change.path), []).append(patch.name)
    facts = {
        "name": upstream["name"],
        "version": upstream["version"],
        "source": upstream["source"],
        "pin": f"commit {upstream['commit']}" if "commit" in upstream else f"sha256 {upstream['sha256']}",
    }
    return render(facts, parse_changes(os.fsdecode(out)), touched).encode("utf-8", "surrogateescape")


def build(
    repo: Path,
    upstream: dict[str, str],
    stack: Stack,
    record: dict[str, object],
    *,
    python: Path,
    epoch: int,
    out_dir: Path,
) -> Path:
    """Build the wheel of one upstream from its patched tree in `repo` and return its path in `out_dir`.

    `python`: interpreter of the build environment. `epoch`: time of the archive's entries, seconds since 1970.
    Raises ToolError with the end of the back end's output when it fails.
    """
    name, tree = upstream["name"], upstream["patched_tree"]
    plan = recipe(name, str(record["version"]))
    with tempfile.TemporaryDirectory(prefix=f"wheel-{name}-") as scratch:
        source, raw = Path(scratch, "source"), Path(scratch, "raw")
        export(repo, tree, source)
        # Overlay data files are package data too: everything tracked below the package folder goes in.
        with (source / "MANIFEST.in").open("a") as manifest:
            manifest.write(f"\ngraft {plan.package}\n")
        _run_back_end(name, source, raw, plan, python, epoch)
        wheels = list(raw.glob("*.whl"))
        if len(wheels) != 1:
            raise ToolError(f"{len(wheels)} wheels came out of `{name}`", where=str(repo), action="see its setup.py")
        licences = {"NOTICE": notice(repo, record, upstream, stack)}
        extra = {f"{plan.package}/distribution.json": render_record(record)}
        try:
            return repack(wheels[0], out_dir, epoch=epoch, extra=extra, licences=licences)
        except RepackError as error:
            raise ToolError(
                str(error), where=str(repo), action="correct the tree or its setup.py, then run `make wheels`"
            ) from error


def _run_back_end(name: str, source: Path, raw: Path, plan: Recipe, python: Path, epoch: int) -> None:
    home = source.parent / "home"
    home.mkdir()
    variables = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(source.parent),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(epoch),
        **plan.variables,
    }
    pip = [str(python), "-m", "pip", "--isolated", "--disable-pip-version-check", "wheel"]
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(raw)]
    done = subprocess.run(
        [*pip, *flags, str(source)],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_LOG_TAIL:])
        raise ToolError(
            f"the build back end of `{name}` ended with {done.returncode}; the end of its output:\n{tail}",
            where=f"build/trees/{name}",
            action="correct the patch or overlay file it names, then run `make wheels`",
        )
