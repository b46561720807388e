# SPDX-License-Identifier: Apache-2.0
"""image: the container image from Dockerfile and dist/; --check builds it over a small local base instead."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys

from scripts import git, image_local, lockfile, record, wheels
from scripts.console import data, note, warn
from scripts.errors import Exit, ToolError
from scripts.paths import Project

NAME = "vllm-gaudi-frontier"
_BUILDERS = (["docker", "build"], ["podman", "build", "--format=docker"], ["buildah", "build", "--format=docker"])


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", metavar="IMAGE", help="stock Gaudi PyTorch image, best as NAME@sha256:DIGEST")
    parser.add_argument("--build-inside", action="store_true", help="run `make wheels` inside the base image as well")
    parser.add_argument(
        "--check", action="store_true", help="build over a small local base and judge good and bad images"
    )


def run(project: Project, args: argparse.Namespace) -> int:
    """Print the tag of the image."""
    built = wheels.build(project)
    note(f"image: wheels {', '.join(path.name for path in built.wheels.values())}")
    if args.check:
        return image_local.check(project)
    if "@sha256:" not in (args.base or ""):
        base = args.base or "the base image that the Dockerfile names"
        warn(f"{base} is not given by digest: the same command may give another image tomorrow")
    tag = f"{NAME}:{record.version(lockfile.load(project)).replace('+', '-')}"
    command = [*builder(), "--tag", tag, *build_arguments(project)]
    if args.base:
        command += ["--build-arg", f"BASE_IMAGE={args.base}"]
    if args.build_inside:
        command += ["--build-arg", "WHEELS=build"]
    note(f"image: {' '.join(command[:2])} … {tag}")
    done = subprocess.run([*command, str(project.root)], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ToolError(
            f"`{' '.join(command[:2])}` ended with {done.returncode}",
            where="Dockerfile",
            action="see the builder's message above; `make image-check` tells whether the Dockerfile itself is sound",
        )
    data(tag)
    return Exit.OK


def builder() -> list[str]:
    """The first container builder on PATH. Raises ToolError when there is none."""
    for command in _BUILDERS:
        if shutil.which(command[0]):
            return list(command)
    raise ToolError(
        "no container builder found", where="PATH", action="install docker, podman or buildah, then run `make image`"
    )


def build_arguments(project: Project) -> list[str]:
    """What the labels say: version, lock hash, and the commit of this checkout where it is one."""
    lock = lockfile.load(project)
    try:
        revision = git.text(None, "-C", str(project.root), "rev-parse", "HEAD")
    except git.GitError:
        revision = "unknown"
    values = {"VERSION": record.version(lock), "LOCK_HASH": lock.hash, "REVISION": revision}
    return [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
