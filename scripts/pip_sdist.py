# SPDX-License-Identifier: Apache-2.0
"""Get an sdist through pip, so that the user's index, proxies, certificates and credentials apply.

pip prepares metadata of whatever it downloads. A source archive carries its metadata in PKG-INFO, so a stand-in build
backend hands that over: nothing of the archive is executed and no build requirement is installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import console
from scripts.cache import full_disk
from scripts.errors import Exit, ToolError
from scripts.locking import exclusive
from scripts.paths import Project

_BACKEND = """\
import os


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as handle:
        text = handle.read()
    fields = dict(line.split(": ", 1) for line in text.split("\\n\\n")[0].splitlines() if ": " in line)
    name = "{}-{}.dist-info".format(fields["Name"].replace("-", "_"), fields["Version"])
    os.mkdir(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w", encoding="utf-8") as handle:
        handle.write("Metadata-Version: 2.1\\nName: {Name}\\nVersion: {Version}\\n".format(**fields))
    return name


def build_wheel(*words, **settings):
    raise RuntimeError("this backend only hands over metadata")
"""


def download(project: Project, requirement: str, sha256: str | None) -> tuple[Path, str]:
    """The archive of `requirement` (`name==version`) in the cache, and its sha256.

    With `sha256` None the first download decides the hash (used by rebase, which then pins it).

    Raises:
        ToolError: no such release, unreachable index, or a hash that differs; the cache is unharmed.
    """
    store = project.cache / "sdist"
    name = requirement.partition("==")[0]
    with full_disk(project.cache), exclusive(store / f"{name}.lock"):
        if sha256 is not None and (found := cached(project, sha256)):
            return found, sha256
        with tempfile.TemporaryDirectory(prefix=".new-", dir=store) as scratch:
            archive = _run_pip(Path(scratch), requirement, sha256)
            actual = file_sha256(archive)
            if sha256 not in (None, actual):
                raise ToolError(
                    f"{archive.name} has sha256 {actual}, the lock wants {sha256}",
                    where=requirement,
                    action="do not use this file; check which index served it (pip config list)",
                )
            final = store / actual / archive.name
            final.parent.mkdir(exist_ok=True)
            os.replace(archive, final)
            return final, actual


def cached(project: Project, sha256: str) -> Path | None:
    """The archive with this sha256 in the cache; its content is checked when it is used."""
    folder = project.cache / "sdist" / sha256
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if not files:
        return None
    actual = file_sha256(files[0])
    if actual != sha256:
        raise ToolError(
            f"the cached archive has sha256 {actual}, the lock wants {sha256}",
            where=str(files[0]),
            action="remove that file and run `python -m scripts fetch` again",
        )
    return files[0]


def file_sha256(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as handle:
        digest = hashlib.sha256()
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _run_pip(scratch: Path, requirement: str, sha256: str | None) -> Path:
    backend = scratch / "backend" / "setuptools"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_BACKEND, encoding="utf-8")
    name = requirement.partition("==")[0]
    pinned = f"{requirement} --hash=sha256:{sha256}" if sha256 else requirement
    (scratch / "requirement.txt").write_text(pinned + "\n", encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": str(backend.parent),
        "SETUPTOOLS_USE_DISTUTILS": "stdlib",  # the stand-in has no distutils of its own
        "PIP_RESUME_RETRIES": os.environ.get("PIP_RESUME_RETRIES", "5"),  # pip 25.1 and newer
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    bar = "on" if console.interactive() else "off"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", name, "--no-build-isolation"]
    command += ["--use-pep517", "--progress-bar", bar, "-r", str(scratch / "requirement.txt")]
    command += ["--dest", str(scratch / "download")]
    done = subprocess.run(
        command, env=env, stdout=sys.stderr if bar == "on" else subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    files = sorted((scratch / "download").glob("*")) if done.returncode == 0 else []
    if files:
        return files[0]
    raise _explain(requirement, (done.stdout or b"").decode(errors="replace"), done.stderr.decode(errors="replace"))


def _explain(requirement: str, output: str, complaint: str) -> ToolError:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
    if "No module named pip" in complaint:
        return ToolError(
            "this Python has no pip, which fetches the sdist",
            where=sys.executable,
            action="run `python -m ensurepip`, or give the archive with --source NAME=PATH",
        )
    if "DO NOT MATCH THE HASHES" in complaint:
        got = next((line for line in lines if line.startswith("Got")), "")
        return ToolError(
            f"the index serves another file than the lock wants. {got}",
            where=requirement,
            action="do not use this file; check which index served it (pip config list)",
        )
    if "No space left" in complaint + output:
        raise OSError(28, "No space left on device")
    return ToolError(
        f"pip could not download {requirement}: {said}",
        where="the package index of `pip config list`",
        action="check network, proxy and index settings, or give the archive with --source NAME=PATH",
        code=Exit.UNREACHABLE,
    )
