# SPDX-License-Identifier: Apache-2.0
"""demo: from nothing to the rebuilt server on the emulated Gaudi, answering; `--serve` leaves it running."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import time

from scripts import env as env_verb
from scripts import environment, wheels
from scripts.arguments import whole_number
from scripts.errors import Exit, ToolError
from scripts.paths import Project

# MiB an environment takes with the CPU build of torch, and pip's temporary files beside it.
ROOM = {"build": 1500, "serve": 3000}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--serve", action="store_true", help="stay up until Ctrl-C")
    parser.add_argument(
        "--port", type=whole_number(0, 65535), help="port of the server, 0 picks a free one (default 8000)"
    )


def check_room(project: Project) -> None:
    """Raise ToolError when the disk cannot hold the environments that are still to be built."""
    missing = [name for name in ROOM if environment.problem(environment.ENVIRONMENTS[name])]
    need, free = sum(ROOM[name] for name in missing), shutil.disk_usage(project.root).free >> 20
    if free < need:
        raise ToolError(
            f"{free} MiB of disk are free, the environments {' and '.join(missing)} need about {need}",
            where=str(project.root),
            action="free some space, or put the checkout on another disk",
        )


def run(project: Project, args: argparse.Namespace) -> int:
    """Run the demo in the serving environment and return its exit code."""
    if not (project.root / "gates/hpusim/demo.py").is_file():
        raise ToolError("the demo is not in this checkout", where="gates/hpusim/demo.py", action="restore the file")
    check_room(project)
    started = time.monotonic()
    wheels.build(project)
    built = time.monotonic()
    env = env_verb.ensure_serve(project)
    phases = {"wheels": built - started, "environment": time.monotonic() - built}
    command = [str(env.interpreter), "-m", "gates.hpusim.demo"]
    command += [word for name, seconds in phases.items() for word in ("--before", f"{name}={seconds:.1f}")]
    command += ["--serve"] if args.serve else []
    command += ["--port", str(args.port)] if args.port is not None else []
    process = subprocess.Popen(command, cwd=project.root)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # whoever ends this process means the server as well
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if process.poll() is not None:
                return Exit.INTERRUPTED
            # The terminal sent Ctrl-C to the demo as well: it stops its server and ends, and so does this loop.
