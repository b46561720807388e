# SPDX-License-Identifier: Apache-2.0
"""Compiles the native device through torch's extension loader, once per source and torch version and user."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCES = ("device.cpp", "fallback.cpp")
_HERE = Path(__file__).parent


class BuildError(RuntimeError):
    """The extension cannot be built; the message says what is missing and what to do."""


def key() -> str:
    """Changes whenever the sources, torch or Python do."""
    import torch

    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {torch._C._GLIBCXX_USE_CXX11_ABI}".encode())
    for name in sorted((*SOURCES, "device.h")):
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Where the built extension lives: `HPUSIM_NATIVE_CACHE`, else `hpusim/<key>` in the user's cache."""
    chosen = os.environ.get("HPUSIM_NATIVE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpusim"
    return (Path(chosen) if chosen else base) / key()


def _import(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tools() -> None:
    """Find compiler and ninja, also where ninja came with the environment; BuildError names the one that is missing."""
    scripts = Path(sys.executable).parent
    if shutil.which("ninja") is None and (scripts / "ninja").exists():
        os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), str(scripts)))  # the venv is not activated
    compiler = (shlex.split(os.environ.get("CXX", "")) or ["c++"])[0]  # CXX may be `ccache g++`
    for tool in (compiler, "ninja"):
        if shutil.which(tool) is None:
            raise BuildError(
                f"HPUSIM_NATIVE=1 needs {tool} to build the native device: install it or unset HPUSIM_NATIVE"
            )


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One builder at a time; the kernel drops the lock of a process that was killed, a lock file would stay."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "building").open("w")
    except OSError as error:
        raise BuildError(
            f"the native device cannot be built in {folder}: {error.strerror}; name another folder in "
            "HPUSIM_NATIVE_CACHE or unset HPUSIM_NATIVE"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def load() -> Any:
    """The extension module, built first when the cache has none (about a minute); BuildError when it cannot be."""
    folder, name = cache_folder(), "hpusim_native"
    library = folder / f"{name}.so"
    if library.exists():
        return _import(library, name)
    tools()
    with _exclusive(folder):
        if library.exists():  # another process was faster
            return _import(library, name)
        return _compile(folder, name, library)


def _compile(folder: Path, name: str, library: Path) -> Any:
    """Build in a folder of its own, put the finished library in place at once, return the module."""
    from torch.utils import cpp_extension

    print(f"hpusim: building the native device in {folder}, once", file=sys.stderr, flush=True)
    sources = [str(_HERE / source) for source in SOURCES]
    with tempfile.TemporaryDirectory(dir=folder) as build:
        try:
            # -O1: the time is in torch's kernels, and compiling is what a user waits for.
            module = cpp_extension.load(name, sources, extra_cflags=["-O1", "-g0"], build_directory=build)
        except RuntimeError as error:
            raise BuildError(
                f"the native device does not compile (are Python's headers installed?): {str(error)[-2000:]}"
            ) from error
        os.replace(Path(build) / library.name, library)
        return module
