# SPDX-License-Identifier: Apache-2.0
"""env: every environment of the project; `serve` with the rebuilt wheels and the emulated Gaudi in it."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scripts import environment, wheels
from scripts.console import data, note
from scripts.environment import Environment
from scripts.errors import Exit, ToolError
from scripts.locking import exclusive
from scripts.paths import Project

INSTALLER = "gates.hpusim.install"
_NAMES = ("dev", "build", "hf", "serve")  # in this order, where none is named
_EXTRA = tuple(name for name, env in environment.ENVIRONMENTS.items() if env.extra)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: {', '.join(_NAMES)}; by name only: {', '.join(_EXTRA)}"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="interpreter to build them with (default: a fitting one on PATH)"
    )
    parser.add_argument("--check", action="store_true", help="compare versions only; change nothing")


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the folder of each environment."""
    known = (*_NAMES, *_EXTRA)
    if unknown := sorted(set(args.names) - set(known)):
        raise ToolError(
            f"no environment `{unknown[0]}`", where="command line", action=f"use {', '.join(known)}", code=Exit.USAGE
        )
    if args.python and "dev" in args.names:
        raise ToolError(
            "--python has no effect on `dev`, the environment this tool runs in",
            where="command line",
            action=f"remove build/venv, then run `make env PYTHON={args.python}`",
            code=Exit.USAGE,
        )
    for name in args.names or _NAMES:
        if args.check:
            env = environment.check(name)
            if name == "serve":
                check_layers(project, env)
        elif name == "serve":
            env = ensure_serve(project, args.python)
        else:
            env = environment.ensure(name, args.python if environment.ENVIRONMENTS[name].python else None)
        data(str(env.path.relative_to(environment.ROOT)))
    return Exit.OK


def ensure_serve(project: Project, python: str | None = None) -> Environment:
    """The serving environment with the wheels of the current lock and the current emulation. Raises ToolError."""
    built = wheels.build(project)
    env = environment.ensure("serve", python)
    with exclusive(project.build / ".serve-layers.lock"):
        _layer(env, "wheels", _digest(built.wheels.values()), lambda: _install_wheels(env, list(built.wheels.values())))
        if emulation := _emulation(project):
            _layer(env, "emulation", _digest(emulation), lambda: _install_emulation(project, env))
    return env


def check_layers(project: Project, env: Environment) -> None:
    """Raise ToolError unless the wheels in `env` are those in dist/ and the emulation is the one of this checkout."""
    found = wheels.in_dist(project)
    wanted = {"wheels": _digest(found.values())} if found else {}
    if emulation := _emulation(project):
        wanted["emulation"] = _digest(emulation)
    stale = [name for name, digest in wanted.items() if _stamp(env, name) != digest]
    if not found or stale:
        raise ToolError(
            f"the {' and '.join(stale) if found else 'wheels'} of environment `{env.name}` are not the current ones",
            where=str(env.path),
            action="run `make env`",
        )


def _layer(env: Environment, name: str, digest: str, install: Callable[[], None]) -> None:
    """Run `install` unless layer `name` was finished for `digest`; the stamp goes first and comes back last."""
    if _stamp(env, name) == digest:
        return
    path = _stamp_path(env, name)
    path.unlink(missing_ok=True)
    started = time.monotonic()
    install()
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"digest": digest}) + "\n")
    partial.replace(path)
    note(f"environment {env.name}: {name} installed in {time.monotonic() - started:.0f} s")


def _install_wheels(env: Environment, paths: list[Path]) -> None:
    pip = [str(env.interpreter), "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "-qq"]
    _call(env, [*pip, "--no-index", "--no-deps", "--force-reinstall", *map(str, paths)], "pip")


def _install_emulation(project: Project, env: Environment) -> None:
    _call(env, [sys.executable, "-m", INSTALLER, str(env.path)], INSTALLER, project.root)


def _call(env: Environment, command: list[str], what: str, cwd: Path | None = None) -> None:
    if code := subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        raise ToolError(
            f"{what} ended with {code} while completing environment `{env.name}`",
            where=str(env.path),
            action="see its message above; the next run starts this step again",
        )


def _emulation(project: Project) -> list[Path]:
    """Files that decide what the installer of the emulated Gaudi puts into an environment; empty where it is absent."""
    folder = project.root / "gates" / "hpusim"
    if not (folder / "install.py").is_file():
        return []
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _digest(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.name}\0{content}\n".encode())
    return total.hexdigest()


def _stamp_path(env: Environment, name: str) -> Path:
    return env.path / f"layer-{name}.stamp"


def _stamp(env: Environment, name: str) -> str:
    try:
        return str(json.loads(_stamp_path(env, name).read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
