# SPDX-License-Identifier: Apache-2.0
"""CPU seconds and wall time of loads, side by side in one run, as ratios.

    python gates/cpu/loader/bench_load.py FOLDER [--tp 8] [--rank 0] [--expert-parallel]

FOLDER holds a checkpoint (`python -m gates.checkpoints.beam`). Compared are the stock loader, the load format, and a
plain parallel read of the bytes this rank keeps. The page cache is warm: each is run once before.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("PT_HPU_LAZY_MODE", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(Path(__file__).parents[1] / "beam"), str(Path(__file__).parents[3])]

import torch  # noqa: E402
from rank_model import as_rank, build  # noqa: E402


def timed(action) -> tuple[float, float]:
    """(wall, CPU) seconds of `action`."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def plain_read(folder: Path, tp: int, rank: int, expert_parallel: bool):
    """An action that reads the kept ranges into one buffer a thread, and the bytes it reads."""
    from vllm_gaudi.loader import reader
    from vllm_gaudi.loader.headers import read_checkpoint
    from vllm_gaudi.loader.plan import make_plan
    from vllm_gaudi.loader.rescale import Rescale

    model = build(folder, tp, rank, expert_parallel)
    with as_rank(rank, tp):
        plan = make_plan(model, read_checkpoint(folder), Rescale())
    jobs = [job for stack in plan.stacks for job in reader.jobs_of(stack, 8 << 20)]

    def action() -> None:
        files = reader.Files()

        def one(job) -> None:
            first = job.pieces[0]
            buffer = memoryview(bytearray(job.nbytes))
            files.read(first.move.source.file, [buffer], first.offset)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, jobs))
        files.close()

    return action, sum(job.nbytes for job in jobs)


def loading(folder: Path, load_format: str, tp: int, rank: int, expert_parallel: bool):
    """An action that fills a model built beforehand."""
    from vllm.config import set_current_vllm_config
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    model = build(folder, tp, rank, expert_parallel)
    loader = get_model_loader(LoadConfig(load_format=load_format, use_tqdm_on_load=False))

    def action() -> None:
        with as_rank(rank, tp), set_current_vllm_config(model.vllm_config):
            loader.load_weights(model, model.vllm_config.model_config)

    return action


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--expert-parallel", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    layout = (args.tp, args.rank, args.expert_parallel)
    read, size = plain_read(args.folder, *layout)
    actions = {
        "plain read": read,
        "beam": loading(args.folder, "beam", *layout),
        "auto": loading(args.folder, "auto", *layout),
    }
    for action in actions.values():
        action()
    times = {name: timed(action) for name, action in actions.items()}
    print(f"{size} bytes kept by rank {args.rank} of {args.tp}, page cache warm")
    for name, (wall, cpu) in times.items():
        ours = times["beam"]
        print(f"{name:10}: wall {wall / ours[0]:.2f}, CPU {cpu / ours[1]:.2f} times the load format's")


if __name__ == "__main__":
    main()
