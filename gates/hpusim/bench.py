# SPDX-License-Identifier: Apache-2.0
"""Start-up time, tokens per second and memory at 1, 2 and 8 ranks: `python -m gates.hpusim.bench [RANKS ...]`.

Tiny Qwen3-MoE, eager, batch 4, 64 tokens each, measured in the second of two equal batches. Figures compare rows of one
run on one machine; they say nothing about a Gaudi.
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


def main(arguments: list[str]) -> int:
    ranks = [int(text) for text in arguments] or [1, 2, 8]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| ranks | LLM() s | tokens/s, batch 4 | host memory GiB | device memory a rank MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="hpusim-") as folder:
        for count in ranks:
            row = measure(count, Path(folder))
            print(
                f"| {count} | {row['start_s']:.0f} | {row['tokens_per_s']:.0f} | {row['memory_gib']:.1f} "
                f"| {row['device_mib']:.0f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
