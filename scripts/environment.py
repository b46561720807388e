# SPDX-License-Identifier: Apache-2.0
"""Build the project's virtual environments from their pinned lists, and say when one no longer matches its list.

Runs on the standard library alone, since it makes the environment in which everything else runs:

    python3 -m scripts.environment dev build serve hf     # create or repair those named
    python3 -m scripts.environment --check serve          # compare versions only, change nothing

An environment is trusted when its stamp (the digest of list, interpreter and recipe, written last) is the expected one
and every pinned release is there. Anything else, such as an interrupted installation, is built again from nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.console import error as say_error
from scripts.console import note as say
from scripts.errors import Exit, ToolError

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 10), (3, 13))  # first and last Python of the tool
SYSTEM_TORCH = "VLLM_GAUDI_FRONTIER_BUILD_TORCH"
RECIPE = 1  # raise when the steps of `_create` change, so that existing environments are rebuilt
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;#]+)\s*(?:;(?P<marker>[^#]*))?(?:#.*)?$")


@dataclass(frozen=True)
class Environment:
    """One virtual environment: where it lies below build/, what goes in, and what it is for."""

    name: str
    folder: str
    requirements: str
    purpose: str
    python: tuple[int, int] | None = None  # None: any the tool supports
    extra: bool = False  # built only where it is asked for by name

    @property
    def path(self) -> Path:
        """Folder of the virtual environment."""
        return ROOT / "build" / self.folder

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.path / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """The file whose content says that the installation reached its end."""
        return self.path / "environment.stamp"


ENVIRONMENTS = {
    env.name: env
    for env in (
        Environment("dev", "venv", "requirements/dev.txt", "the patch-stack tool, its tests and the linters"),
        Environment("build", "wheel-env", "requirements/build.txt", "the wheels", (3, 11)),
        Environment("serve", "serve", "requirements/serve.txt", "the server on the emulated Gaudi", (3, 11)),
        Environment("hf", "hf", "requirements/hf.txt", "the reference models", (3, 11)),
        Environment("accuracy", "accuracy", "requirements/accuracy.txt", "lm-evaluation-harness", (3, 11), extra=True),
        Environment("gates", "gates", "requirements/gates.txt", "the gates that ask a server", (3, 11), extra=True),
    )
}


def pins(requirements: Path, version: tuple[int, int] | None = None) -> dict[str, str]:
    """Normalised distribution name to version, from a list of `name==version` lines that apply to Python `version`.

    `version` is (major, minor), by default that of the running interpreter.

    Raises ToolError for any other kind of line: a complete list has nothing to resolve.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(requirements.read_text().splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _PIN.match(line)
        if not match:
            raise ToolError(
                f"line is not `name==version`: {line}",
                where=f"{requirements.name}:{number}",
                action="pin one release; these lists are installed without resolving",
            )
        if _marker_applies(match["marker"] or "", f"{requirements.name}:{number}", version or sys.version_info[:2]):
            found[normalise(match["name"])] = match["version"]
    return found


def _marker_applies(marker: str, where: str, version: tuple[int, int]) -> bool:
    """The one marker these lists use, `python_version < "X.Y"`; the standard library has no marker parser."""
    if not marker.strip():
        return True
    match = re.fullmatch(r'\s*python_version\s*<\s*"(\d+)\.(\d+)"\s*', marker)
    if not match:
        raise ToolError(f"marker not understood: {marker.strip()}", where=where, action='use python_version < "X.Y"')
    return version < (int(match[1]), int(match[2]))


def normalise(name: str) -> str:
    """PEP 503 form of a distribution name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(folder: Path) -> dict[str, str]:
    """Normalised name to version of what lies in a virtual environment, read from outside it."""
    found: dict[str, str] = {}
    for info in folder.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found[normalise(name)] = version
    return found


def python_in(folder: Path) -> tuple[int, int] | None:
    """(major, minor) of the Python a virtual environment was made with, which need not be the running one."""
    found = [match for path in folder.glob("lib/python3.*") if (match := re.fullmatch(r"python3\.(\d+)", path.name))]
    return (3, int(found[0][1])) if found else None


def mismatches(env: Environment) -> list[str]:
    """One line per pinned release that is missing from `env` or has another version; empty when it matches.

    A local suffix that the index added (`2.13.0+cpu`) counts as the pinned release.
    """
    have = installed(env.path)
    lines = []
    for name, version in pins(ROOT / env.requirements, python_in(env.path)).items():
        if name == "torch" and system_torch():
            continue
        found = have.get(name)
        if found is None:
            lines.append(f"{name}: {version} wanted, missing")
        elif found != version and found.partition("+")[0] != version:
            lines.append(f"{name}: {version} wanted, {found} found")
    return lines


def expected_stamp(env: Environment, python: str) -> str:
    """Digest of all that decides the environment's content: list, interpreter, recipe."""
    listed = (ROOT / env.requirements).read_bytes()
    parts = [listed, python.encode(), str(RECIPE).encode(), str(system_torch()).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def problem(env: Environment) -> str | None:
    """Why `env` cannot be used as it is, or None."""
    if not env.interpreter.exists():
        return "not built"
    try:
        stamp = json.loads(env.stamp.read_text())
    except (OSError, ValueError):
        return "its installation did not finish"
    if stamp.get("digest") != expected_stamp(env, stamp.get("python", "")):
        return f"{env.requirements} has changed"
    wrong = mismatches(env)
    return "; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "") if wrong else None


def check(name: str) -> Environment:
    """The environment `name` if it is whole. Raises ToolError naming what differs and the command that repairs it."""
    env = ENVIRONMENTS[name]
    if why := problem(env):
        repair = f"python -m scripts env {name}" if env.extra else "make env"
        raise ToolError(f"environment `{name}` is not usable: {why}", where=str(env.path), action=f"run `{repair}`")
    return env


def ensure(name: str, python: str | None = None) -> Environment:
    """Return environment `name`, building it where it is missing or differs. Raises ToolError."""
    env = ENVIRONMENTS[name]
    with _locked(env):
        why = problem(env)
        if why is None and python and python != json.loads(env.stamp.read_text())["python"]:
            why = f"another interpreter is asked for ({python})"
        if why is None:
            return env
        say(f"environment {name} ({env.purpose}): {why}; building {env.path.relative_to(ROOT)}")
        started = time.monotonic()
        chosen = python or find_python(env)
        probe(env, chosen)
        _create(env, chosen)
        say(f"environment {name}: ready in {time.monotonic() - started:.0f} s")
    return env


def find_python(env: Environment) -> str:
    """Path of an interpreter for `env`: the one running if it fits, else pythonX.Y from PATH. Raises ToolError."""
    if env.python is None or sys.version_info[:2] == env.python or system_torch():
        return getattr(sys, "_base_executable", sys.executable)
    wanted = "python{}.{}".format(*env.python)
    found = shutil.which(wanted)
    if not found:
        raise ToolError(
            f"{wanted} is needed for environment `{env.name}` and is not on PATH",
            where=env.requirements,
            action=f"install {wanted} with its venv module, or name one: make env PYTHON=/path/to/{wanted}",
        )
    return found


def probe(env: Environment, python: str) -> None:
    """Raise ToolError, naming the interpreter and what it was asked, unless `python` can make `env`."""
    wanted = "Python {}.{}".format(*env.python) if env.python and not system_torch() else "Python 3.10 to 3.13"

    def refuse(what: str) -> ToolError:
        return ToolError(
            what,
            where=f"interpreter for environment `{env.name}`: {python}",
            action=f"install {wanted} with its venv module, or name one: make env PYTHON=/path/to/python3.11",
        )

    program = "import sys; print('python', *sys.version_info[:2]); import venv, ensurepip"
    try:
        done = subprocess.run(
            [python, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as exc:
        raise refuse(f"`{python}` cannot be run: {exc.strerror}") from exc
    match = re.match(r"python (\d+) (\d+)\n", done.stdout)
    if not match:
        said = (done.stdout + done.stderr).strip()[-200:] or "nothing"
        raise refuse(f'`{python} -c "{program}"` ended with {done.returncode} and said: {said}')
    version = (int(match[1]), int(match[2]))
    fits = version == env.python if env.python and not system_torch() else SUPPORTED[0] <= version <= SUPPORTED[1]
    if not fits:
        raise refuse(f"`{python}` is Python {version[0]}.{version[1]}, environment `{env.name}` takes {wanted}")
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise refuse(f"`{python}` cannot make virtual environments: {said}")


def _create(env: Environment, python: str) -> None:
    """Build `env` from nothing; with SYSTEM_TORCH set, on top of the interpreter's own torch instead of ours."""
    shared = system_torch()
    shutil.rmtree(env.path, ignore_errors=True)
    env.path.parent.mkdir(parents=True, exist_ok=True)
    listed = ROOT / env.requirements
    _run(env, [python, "-m", "venv", *(["--system-site-packages"] if shared else []), str(env.path)])
    pip = [str(env.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-qq"]
    wanted = pins(listed)
    if shared:
        listed = _without_torch(env)
    elif "torch" in wanted:
        # torch alone may bring dependencies: where an index has the CUDA build only, that build needs its libraries.
        _run(env, [*pip, "--constraint", str(listed), f"torch=={wanted['torch']}"])
    _run(env, [*pip, "--no-deps", "--requirement", str(listed)])
    if wrong := mismatches(env):
        raise ToolError(
            f"pip finished but environment `{env.name}` differs from its list: {wrong[0]}",
            where=env.requirements,
            action="check PIP_* settings and pip.conf for constraints that replace a pin",
        )
    digest = expected_stamp(env, python)
    partial = env.stamp.with_suffix(".partial")
    partial.write_text(json.dumps({"digest": digest, "python": python}) + "\n")
    partial.replace(env.stamp)


def _run(env: Environment, command: list[str]) -> None:
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if result.returncode:
        raise ToolError(
            f"`{' '.join(command)}` ended with {result.returncode} while building environment `{env.name}`",
            where=env.requirements,
            action="see its message above; the next run starts this environment again from nothing",
        )


def system_torch() -> bool:
    """Whether the interpreter's own torch is to be used, as inside a Gaudi image."""
    return os.environ.get(SYSTEM_TORCH) == "system"


def _without_torch(env: Environment) -> Path:
    """A copy of the list without torch, inside `env`."""
    lines = (ROOT / env.requirements).read_text().splitlines(keepends=True)
    copy = env.path / "requirements.txt"
    copy.write_text("".join(line for line in lines if not line.startswith("torch==")))
    return copy


@contextmanager
def _locked(env: Environment) -> Iterator[None]:
    """Two runs at once build an environment once: the second waits, then finds it whole."""
    env.path.parent.mkdir(parents=True, exist_ok=True)
    with (env.path.parent / f".{env.folder}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"environment {env.name}: another run is building it; waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.environment", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=sorted(ENVIRONMENTS), metavar="NAME")
    parser.add_argument("--check", action="store_true", help="compare only; change nothing")
    parser.add_argument("--python", help="interpreter to build with (default: a fitting one on PATH)")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    try:
        for name in options.names:
            env = check(name) if options.check else ensure(name, options.python)
            print(env.path.relative_to(ROOT))
    except ToolError as error:
        say_error(str(error))
        return error.code
    except OSError as error:
        say_error(f"{error.strerror}\n  where: {error.filename}\n  next:  free or correct that path")
        return Exit.BAD_INPUT
    except KeyboardInterrupt:
        say_error("interrupted; the next run starts that environment again from nothing")
        return Exit.INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
