# SPDX-License-Identifier: Apache-2.0
"""Host cost of one decode step's block lists, arrays against upstream's Python lists, side by side in one run.

    python -m gates.cpu.runner.host_cost [requests] [context]

Prints the two medians' ratio; absolute times depend on the machine and are not reported.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch


class _OneBucket:
    """Buckets large enough for the batch: their search is not what is compared."""

    def __init__(self, rows: int, blocks: int):
        self._bucket = (rows, 1, blocks)

    def find_decode_bucket(self, *args: Any) -> tuple[int, int, int]:
        return self._bucket


def measure(checkpoint: Path, requests: int = 16, context: int = 262_144, rounds: int = 41) -> dict[str, Any]:
    """Ratio of the host time of `_create_decode_input_data` with arrays to that with lists."""
    from gates.cpu.runner.toy_engine import ToyEngine, vllm_config
    from vllm_gaudi.extension.defragmentation import OnlineDefragmenter
    from vllm_gaudi.runtime import settings

    runner = ToyEngine(vllm_config(checkpoint, block_size=128, max_num_seqs=requests), 64).runner
    blocks = context // 128
    table = torch.randint(0, 40_000, (requests, blocks + 1), dtype=torch.int32)
    counts = np.full(requests, context - 1, dtype=np.int32)
    runner.bucketing_manager = _OneBucket(requests, requests * blocks)
    # As after warm-up: a defragmenter is there, and disabled.
    runner.defragmenter = OnlineDefragmenter.__new__(OnlineDefragmenter)
    runner.defragmenter.enabled, runner.defragmenter.fwd_mapping_table = False, []
    runner.positions_cpu[:requests] = context - 1
    resolve = type(runner)._resolve_all_blocks
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(rounds):
        for switch, spent in times.items():
            settings.current.cache_clear()
            object.__setattr__(settings.current(), "host_lists", switch)
            # Without the patch the disabled defragmenter is asked for every block.
            runner._resolve_all_blocks = runner.defragmenter.resolve_all if switch == "off" else resolve.__get__(runner)
            start = time.perf_counter()
            runner._create_decode_input_data(requests, [1] * requests, counts, table)
            spent.append(time.perf_counter() - start)
    settings.current.cache_clear()
    lists, arrays = (statistics.median(times[s]) for s in ("off", "on"))
    return {"requests": requests, "context": context, "ratio": round(arrays / lists, 3), "rounds": rounds}


if __name__ == "__main__":
    from gates.hpusim import checkpoints

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(checkpoints.make("llama", Path(folder)), *map(int, sys.argv[1:]))))
