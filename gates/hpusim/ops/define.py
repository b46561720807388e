# SPDX-License-Identifier: Apache-2.0
"""How an operator of the `hpu` namespace is declared: schema, CPU kernel, fake kernel, in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace

import torch

from gates.hpusim import tracker

NAMESPACE = "hpu"
_library: torch.library.Library | None = None
_defined: dict[str, str] = {}


class NotEmulatedError(NotImplementedError):
    """An operator or option of the device that the emulation does not have; the message names it."""


def defined() -> dict[str, str]:
    """Qualified name (`hpu::op.overload`) of every declared operator and its state, `kernel` or `not emulated`."""
    return dict(_defined)


def define(schema: str, kernel: Callable, fake: Callable) -> None:
    """Declare `hpu::<schema>` with a CPU kernel and the shape function used while tracing.

    Args:
        schema: torch schema without the namespace, e.g. `op.overload(Tensor x) -> Tensor`.
        kernel: called with real CPU tensors; on the native device the dispatcher's fallback hands it CPU aliases.
        fake: called with fake tensors under `torch.compile` and on the meta device.
    """
    global _library
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "DEF")
    name = schema.split("(", 1)[0]
    qualified = f"{NAMESPACE}::{name}"
    if qualified in _defined:
        raise RuntimeError(f"{qualified} is declared twice; every overload belongs to one file of gates/hpusim/ops")
    _library.define(schema)
    _library.impl(name, _one_kernel(kernel), "CPU")
    torch.library.register_fake(qualified, fake, lib=_library)
    _defined[qualified] = "kernel"


def _one_kernel(kernel: Callable) -> Callable:
    @wraps(kernel)
    def run(*args: object, **kwargs: object) -> object:
        with tracker.inside_kernel():
            return kernel(*args, **kwargs)

    return run


def by_name(schema: str, kernel: Callable[[SimpleNamespace], object]) -> Callable:
    """Adapt `kernel(call)`, which reads arguments as attributes of `call`, to the calling convention of `schema`.

    For operators with a dozen arguments and many overloads; the dispatcher leaves out trailing defaults.
    """
    arguments = torch._C.parse_schema(f"{NAMESPACE}::{schema}").arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}

    @wraps(kernel)
    def call(*args: object, **kwargs: object) -> object:
        return kernel(SimpleNamespace(**defaults | dict(zip(names, args, strict=False)) | kwargs))

    return call


def define_not_emulated(schema: str) -> None:
    """Declare an operator that the bridge has and the emulation lacks, so that a call says so by name."""
    qualified = f"{NAMESPACE}::{schema.split('(', 1)[0]}"

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise NotEmulatedError(
            f"torch.ops.{qualified.replace('::', '.')} is not emulated: the serving path of vllm-gaudi does not reach "
            "it. Add a kernel with a float64 test under gates/hpusim/ops, or take the other path."
        )

    define(schema, refuse, refuse)
    _defined[qualified] = "not emulated"
