# SPDX-License-Identifier: Apache-2.0
"""Serve a tiny model on the emulated Gaudi, as the distribution serves the large ones.

    python -m gates.tiny.serve CHECKPOINT --port 8000       # until Ctrl-C; in the serving environment

The KV cache is small on purpose: the isolation gate drives the server into preemptions. 70 blocks of 128 tokens
are what one request of full length may need: 16 of the full layer, 18 of each sliding one while its prompt is read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gates.hpusim import testing
from gates.tiny.family import of_checkpoint

FLAGS = ("--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--max-logprobs", "24")
ENGINE = {"max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 8, "num_gpu_blocks_override": 70}


@contextmanager
def serve(
    checkpoint: Path,
    *,
    port: int | None = None,
    log: Path | None = None,
    env: dict[str, str] | None = None,
    **engine: object,
) -> Iterator[testing.Server]:
    """The server while the context lasts; `engine` replaces values of `ENGINE`."""
    env = {"VLLM_GAUDI_FRONTIER_STATE_HASH": "1", **(env or {})}
    parser = of_checkpoint(checkpoint).parser
    flags = ("--reasoning-parser", parser, "--tool-call-parser", parser, *FLAGS)
    with testing.serve(checkpoint, *flags, port=port, log=log, env=env, **{**ENGINE, **engine}) as server:
        yield server


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.tiny.serve", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--log", type=Path, default=Path("build/tiny-server.log"))
    args = parser.parse_args(arguments)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with serve(args.checkpoint, port=args.port, log=args.log) as server:
            print(f"{server.url} is up; Ctrl-C ends it; log in {args.log}", file=sys.stderr, flush=True)
            while server.process.poll() is None:
                time.sleep(0.5)
    except KeyboardInterrupt:
        return 0
    except (AssertionError, ValueError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    print(f"serve: the server ended by itself; see {args.log}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
