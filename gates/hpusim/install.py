# SPDX-License-Identifier: Apache-2.0
"""Make the emulated Gaudi visible to a serving environment: `python -m gates.hpusim.install VENV [--uninstall]`.

Writes one `.pth` file that points at this checkout; nothing is copied and no wheel changes. Repeating is harmless.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PTH = "hpusim.pth"
# (distribution, version wanted or None for any, why)
REQUIRED = (
    ("torch", "2.13.0", "the CPU build the emulation was written against"),
    ("transformers", "5.12.1", "later versions lost names the plug-in imports"),
    ("xgrammar", None, "structured output"),
    ("compressed-tensors", "0.17.0", "vLLM's own pin"),
    ("vllm", None, "the rebuilt vLLM wheel"),
    ("vllm_gaudi", None, "the rebuilt plug-in wheel"),
)


class InstallError(Exception):
    """What is wrong with the environment, where, and what to do."""


def python_of(venv: Path) -> Path:
    python = venv / "bin" / "python"
    if not python.exists():
        raise InstallError(
            f"{venv} is not a virtual environment: {python} does not exist. Create it with python -m venv."
        )
    return python


def site_packages(venv: Path) -> Path:
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run([python_of(venv), "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    )


def check(venv: Path) -> list[str]:
    """Problems of the environment's packages, empty when it can serve; each names the package and the next action."""
    script = (
        "import json, importlib.metadata as m\nfound = {}\n"
        f"for name in {[name for name, _, _ in REQUIRED]!r}:\n"
        "    try: found[name] = m.version(name)\n    except m.PackageNotFoundError: found[name] = None\n"
        "print(json.dumps(found))"
    )
    found = json.loads(
        subprocess.run([python_of(venv), "-c", script], check=True, capture_output=True, text=True).stdout
    )
    return problems(found, venv)


def problems(found: Mapping[str, str | None], venv: Path) -> list[str]:
    """What `REQUIRED` asks for and `found` (distribution to version, None when absent) does not have, one line each."""
    lines = []
    for name, wanted, why in REQUIRED:
        have = found[name]
        if have is None:
            lines.append(f"{name} is not installed in {venv} ({why}): install it there")
        elif wanted is not None and have.split("+")[0] != wanted:
            lines.append(f"{name} is {have} in {venv}, expected {wanted} ({why}): pip install {name}=={wanted}")
    return lines


def check_this() -> list[str]:
    """`check` for the environment of this process, without starting another."""
    found: dict[str, str | None] = {}
    for name, _, _ in REQUIRED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return problems(found, Path(sys.prefix))


def install(venv: Path) -> Path:
    """Write the `.pth` file; InstallError when the folder is no virtual environment or lacks what serving needs."""
    if wrong := check(venv):
        raise InstallError("\n".join(wrong))
    target = site_packages(venv) / PTH
    text = f"{ROOT}\n{ROOT / 'gates' / 'hpusim' / 'site'}\n"
    if not target.exists() or target.read_text() != text:
        target.write_text(text)
    return target


def uninstall(venv: Path) -> Path:
    target = site_packages(venv) / PTH
    target.unlink(missing_ok=True)
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.hpusim.install", description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--uninstall", action="store_true")
    options = parser.parse_args(arguments)
    try:
        target = uninstall(options.venv) if options.uninstall else install(options.venv)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    print(f"{'removed' if options.uninstall else 'wrote'} {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
