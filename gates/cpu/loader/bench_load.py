# SPDX-License-Identifier: Apache-2.0
"""CPU seconds and wall time of loads, side by side in one run, as ratios.

    python gates/cpu/loader/bench_load.py FOLDER [--tp 8] [--no-expert-parallel] [--only one|all]

If FOLDER does not exist it is written first (`gates.checkpoints.bulk`, 4.5 GB) and removed at the end. Compared with
the load format are vLLM's own loader, the same with `--enable-ep-weight-filter`, the same without the sync after every
tensor, and a plain parallel read of the bytes this rank reads. Cold means that the page cache was asked to drop the
files; how much then came from the storage is measured, not assumed. A slower storage is imitated by waits, for the load
format and the plain read alike: a local disk is faster than what serves eight ranks in practice.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("PT_HPU_LAZY_MODE", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# All ranks live in this process.
os.environ.setdefault("HPUSIM_MEM_GIB", "12")
sys.path[:0] = [str(Path(__file__).parents[1] / "beam"), str(Path(__file__).parents[3])]

import torch  # noqa: E402
from rank_model import as_rank, build  # noqa: E402

from gates.checkpoints import bulk  # noqa: E402

# A quarter of the defaults, so that eight ranks fit a small machine.
SETTINGS = {"host_bytes": 256 << 20, "shared_bytes": 256 << 20}
STOCK = {"auto": {}, "auto, EP weight filter": {"filtered": True}, "auto, no forced sync": {"synced": False}}
RATES = (1.0e9, 0.5e9, 0.25e9)  # bytes a second for one rank
Cost = tuple[float, float, int]


def timed(action: Callable[[], None]) -> Cost:
    """(wall seconds, CPU seconds, bytes from the storage) of `action`."""
    stored, wall, cpu = from_storage(), time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu, from_storage() - stored


def from_storage() -> int:
    """Bytes this process has had read from the storage so far."""
    with open("/proc/self/io") as facts:
        return next(int(line.split()[1]) for line in facts if line.startswith("read_bytes"))


def forget(folder: Path) -> None:
    """Ask the page cache to drop the files."""
    for file in folder.glob("*.safetensors"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def warm(folder: Path) -> None:
    """Read the files once."""
    for file in folder.glob("*.safetensors"):
        with open(file, "rb", buffering=0) as handle:
            while handle.read(8 << 20):
                pass


@contextmanager
def storage_of(rate: float) -> Iterator[None]:
    """Reads of this process wait so that all of them together get `rate` bytes a second."""
    from vllm_gaudi.loader import reader

    real, lock, free = reader.Files.read, threading.Lock(), [0.0]

    def read(self: reader.Files, file: str, buffers: Sequence[memoryview], offset: int) -> None:
        with lock:
            free[0] = max(free[0], time.monotonic()) + sum(map(len, buffers)) / rate
            until = free[0]
        real(self, file, buffers, offset)
        time.sleep(max(0.0, until - time.monotonic()))

    reader.Files.read = read
    try:
        yield
    finally:
        reader.Files.read = real


class Bench:
    """What is compared, for one checkpoint and layout."""

    def __init__(self, folder: Path, tp: int, expert_parallel: bool) -> None:
        self.folder, self.tp, self.expert_parallel = folder, tp, expert_parallel

    def _plan(self, rank: int):
        from vllm_gaudi.loader.headers import read_checkpoint
        from vllm_gaudi.loader.plan import make_plan
        from vllm_gaudi.loader.rescale import Rescale

        model = build(self.folder, self.tp, rank, self.expert_parallel, device="meta")
        with as_rank(rank, self.tp):
            return make_plan(model, read_checkpoint(self.folder), Rescale())

    def plain_read(self, rank: int) -> tuple[Callable[[], None], int]:
        """An action that reads what rank `rank` reads, 16 threads at once, into one buffer a thread; and its bytes."""
        from vllm_gaudi.loader import reader

        jobs = []
        for stack in self._plan(rank).stacks:
            pieces = [piece for move in stack.moves for piece in reader.cut(move, stack, 8 << 20, 0, move.region.rows)]
            for job in reader.join(stack, pieces, 8 << 20):
                jobs.append((job.pieces[0].move.source.file, job.pieces[0].offset, job.nbytes))
        local = threading.local()

        def one(job: tuple[str, int, int]) -> None:
            file, offset, size = job
            if not hasattr(local, "buffer"):
                local.buffer = memoryview(bytearray(9 << 20))
            files.read(file, [local.buffer[:size]], offset)

        files = reader.Files()

        def action() -> None:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(one, jobs))

        return action, sum(size for *_, size in jobs)

    def loading(
        self, rank: int, load_format: str, filtered: bool = False, synced: bool = True, **extra: int
    ) -> Callable[[], None]:
        """An action that fills a model built beforehand."""
        from vllm.config import set_current_vllm_config
        from vllm.config.load import LoadConfig
        from vllm.model_executor.model_loader import get_model_loader

        os.environ["VLLM_WEIGHT_LOAD_FORCE_SYNC"] = str(synced).lower()
        model = build(self.folder, self.tp, rank, self.expert_parallel)
        model.vllm_config.parallel_config.enable_ep_weight_filter = filtered
        config = LoadConfig(load_format=load_format, use_tqdm_on_load=False, model_loader_extra_config=extra)
        loader = get_model_loader(config)

        def action() -> None:
            with as_rank(rank, self.tp), set_current_vllm_config(model.vllm_config):
                loader.load_weights(model, model.vllm_config.model_config)

        return action

    def one_rank(self, rank: int) -> None:
        """Print the costs of one rank, warm and cold."""
        read, size = self.plain_read(rank)
        print(f"\none rank of {self.tp}, {size} bytes read by it alone")
        variants = {"plain read": lambda: read, "beam": lambda: self.loading(rank, "beam")}
        variants |= {name: lambda how=how: self.loading(rank, "auto", **how) for name, how in STOCK.items()}
        for state, prepare in (("warm", warm), ("cold", forget)):
            costs = {name: self.repeated(variants[name], prepare) for name in ("plain read", "beam")}
            for name in list(STOCK)[: len(STOCK) if state == "warm" else 1]:
                costs[name] = self.repeated(variants[name], prepare, times=1)
            report(state, costs)
        for rate in RATES:
            with storage_of(rate):
                costs = {name: self.repeated(variants[name], warm) for name in ("plain read", "beam")}
            report(f"storage of {rate / 1e9} GB/s", costs)

    def repeated(self, make: Callable[[], Callable[[], None]], prepare: Callable[[Path], None], times: int = 3) -> Cost:
        """Of the run whose wall time is the median of `times`."""
        costs = []
        for _ in range(times):
            action = make()
            prepare(self.folder)
            costs.append(timed(action))
            del action
            gc.collect()
        return sorted(costs)[times // 2]

    def all_ranks(self) -> None:
        """Print the costs of all ranks: stock one after the other, as it shares nothing; ours at once."""
        from node_load import prepare_node

        print(f"\nall {self.tp} ranks, one process")
        reads = [self.plain_read(rank)[0] for rank in range(self.tp)]
        costs: dict[str, Cost] = {}
        warm(self.folder)
        costs["plain reads"] = timed(lambda: [read() for read in reads])
        total = (0.0, 0.0, 0)
        for rank in range(self.tp):
            cost = timed(self.loading(rank, "auto"))
            total = tuple(a + b for a, b in zip(total, cost, strict=True))
            gc.collect()
        costs["auto"] = total
        warm(self.folder)
        run, ranks = prepare_node(self.folder, self.tp, self.expert_parallel, **SETTINGS)
        costs["beam"] = timed(run)
        read = sum(rank.totals.bytes_read for rank in ranks)
        print(f"the node read {read} bytes of {sum(f.stat().st_size for f in self.folder.glob('*.safetensors'))}")
        report("warm", costs)


def report(state: str, costs: dict[str, Cost]) -> None:
    """One line a variant: its cost as a multiple of the load format's."""
    ours = costs["beam"]
    for name, (wall, cpu, stored) in costs.items():
        print(
            f"{state}, {name:22}: wall {wall / ours[0]:6.2f}, CPU {cpu / ours[1]:6.2f} times the load format's; "
            f"{stored / 1e9:.2f} GB from the storage ({wall:.1f} s, {cpu:.1f} s CPU)",
            flush=True,
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--experts", type=int, default=48)
    parser.add_argument("--no-expert-parallel", action="store_true")
    parser.add_argument("--only", choices=("one", "all"), help="one rank, or all ranks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    written = not args.folder.exists()
    if written:
        print(f"{args.folder}: {bulk.write(args.folder, args.experts)} bytes", flush=True)
    bench = Bench(args.folder, args.tp, not args.no_expert_parallel)
    try:
        if args.only != "all":
            bench.one_rank(0)
        if args.only != "one":
            bench.all_ranks()
    finally:
        if written:
            shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
