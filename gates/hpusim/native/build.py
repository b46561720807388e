# SPDX-License-Identifier: Apache-2.0
"""Compiles the native device through torch's extension loader, once per source and torch version and user."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
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


def load() -> Any:
    """The extension module, built first when the cache has none (about a minute); BuildError without a compiler."""
    folder, name = cache_folder(), "hpusim_native"
    library = folder / f"{name}.so"
    if library.exists() and not (folder / "lock").exists():
        return _import(library, name)
    for tool in (os.environ.get("CXX", "c++"), "ninja"):
        if shutil.which(tool) is None:
            raise BuildError(
                f"HPUSIM_NATIVE=1 needs {tool} to build the native device: install it or unset HPUSIM_NATIVE"
            )
    from torch.utils import cpp_extension

    folder.mkdir(parents=True, exist_ok=True)
    print(f"hpusim: building the native device in {folder}, once", file=sys.stderr, flush=True)
    sources = [str(_HERE / source) for source in SOURCES]
    # -O1: the time is in torch's kernels, and compiling is what a user waits for.
    return cpp_extension.load(name, sources, extra_cflags=["-O1", "-g0"], build_directory=str(folder), verbose=False)
