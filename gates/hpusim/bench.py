# SPDX-License-Identifier: Apache-2.0
"""Start-up time, tokens per second and memory at 1, 2 and 8 ranks: `python -m gates.hpusim.bench [RANKS ...]`.

Tiny Qwen3-MoE, lazy mode without graphs, batch 4, 64 tokens each, measured in the second of two equal batches; with
more than one rank the experts are split too. Start-up and speed are ratios to the first row, since only those outlive
the machine; they say nothing about a Gaudi.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from gates.hpusim import checkpoints, testing


def memory(_: Any) -> int:
    """Proportional set size in bytes of this process and its descendants: shared pages count once."""
    import psutil

    me = psutil.Process()
    return sum(process.memory_full_info().pss for process in [me, *me.children(recursive=True)])


def measure(ranks: int, root: Path) -> dict[str, Any]:
    """One row of the table."""
    model = checkpoints.make("qwen3_moe", root, num_attention_heads=8, num_key_value_heads=8)
    source = random.Random(1)
    prompts = [[source.randrange(8, 512) for _ in range(32)] for _ in range(4)]
    batch = {"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 64, "ignore_eos": True}}
    run = testing.run_engine(
        model,
        [batch, batch],
        mode="lazy_eager",
        tensor_parallel_size=ranks,
        enable_expert_parallel=ranks > 1,
        enable_prefix_caching=False,
        call="gates.hpusim.bench:memory",
        timeout=900,
    )
    return {
        "ranks": ranks,
        "start_s": run.answer["start_seconds"],
        "tokens_per_s": 4 * 64 / run.answer["batches"][1]["seconds"],
        "memory_gib": run.answer["call"] / 2**30,
        "device_mib": max(summary["memory_peak"] for summary in run.meters) / 2**20,
    }


def line(row: dict[str, Any], first: dict[str, Any]) -> str:
    """A row of the table: times as ratios to `first`, memory as it is."""
    return (
        f"| {row['ranks']} | {row['start_s'] / first['start_s']:.1f} | "
        f"{row['tokens_per_s'] / first['tokens_per_s']:.2f} | {row['memory_gib']:.1f} | {row['device_mib']:.0f} |"
    )


def main(arguments: list[str]) -> int:
    if not all(text.isdecimal() and int(text) > 0 for text in arguments):
        print("usage: python -m gates.hpusim.bench [RANKS ...], each a number above 0", file=sys.stderr)
        return 2
    ranks = [int(text) for text in arguments] or [1, 2, 8]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="hpusim-") as folder:
        first: dict[str, Any] | None = None
        for count in ranks:
            row = measure(count, Path(folder))
            if first is None:
                first = row
                print(
                    f"{cores} core(s), load {os.getloadavg()[0]:.1f}; ratio 1 is {row['start_s']:.0f} s to start and "
                    f"{row['tokens_per_s']:.0f} tokens/s\n"
                    "| ranks | start-up, ratio | tokens/s, ratio | host memory, GiB | device memory a rank, MiB |\n"
                    "|---|---|---|---|---|"
                )
            print(line(row, first), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
