# SPDX-License-Identifier: Apache-2.0
"""The load format as vLLM sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from vllm_gaudi.loader.headers import Stored, read_checkpoint

if TYPE_CHECKING:
    from vllm_gaudi.loader.agreement import Agreement
    from vllm_gaudi.loader.assemble import Totals
    from vllm_gaudi.loader.plan import Plan
    from vllm_gaudi.loader.rescale import Rescale

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
MAX_THREADS = 1024  # a rank; more wait for each other, not for storage
MAY_BE_ZERO = ("shared_bytes", "patience_seconds")
EVERY = 10.0  # seconds between two lines of progress


@dataclass(frozen=True)
class LoadSettings:
    """Keys of `--model-loader-extra-config`: reader threads; in bytes one read, host stacks at a time, and the memory
    that the ranks of a node share (0: none, each reads for itself); seconds a rank may be silent (0: any time).
    """

    threads: int = 16
    chunk_bytes: int = 8 << 20
    host_bytes: int = 4 << 30
    shared_bytes: int = 1 << 30
    patience_seconds: int = 900

    @classmethod
    def of(cls, extra: dict[str, Any] | None) -> LoadSettings:
        """Settings from the extra config.

        Raises:
            ValueError: an unknown key, or a value that is no positive integer (`MAY_BE_ZERO` may be 0), or more than
                `MAX_THREADS` threads.
        """
        names = [entry.name for entry in fields(cls)]
        for key, value in (extra or {}).items():
            if key not in names:
                raise ValueError(f"--model-loader-extra-config: {key!r} is none of {', '.join(names)}")
            if type(value) is not int or value < (key not in MAY_BE_ZERO):
                raise ValueError(f"--model-loader-extra-config: {key} is {value!r}, must be a positive integer")
            if key == "threads" and value > MAX_THREADS:
                raise ValueError(f"--model-loader-extra-config: threads is {value}, must be at most {MAX_THREADS}")
        return cls(**(extra or {}))


class FrontierModelLoader(BaseModelLoader):
    """Plans from the headers, then reads what this rank keeps; see docs/loader.md."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self.settings = LoadSettings.of(load_config.model_loader_extra_config)
        self.totals: Totals | None = None

    def download_model(self, model_config: ModelConfig) -> None:
        """Fetch the checkpoint unless it is a local folder."""
        self._folder(model_config)

    def _folder(self, model_config: ModelConfig) -> Path:
        source = model_config.model_weights or model_config.model
        if Path(source).is_dir():
            return Path(source)
        stock = DefaultModelLoader(replace(self.load_config, load_format="safetensors", model_loader_extra_config={}))
        return Path(stock._prepare_weights(source, None, model_config.revision, False, None)[0])

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Fill the parameters of `model`.

        Raises:
            CheckpointError, ValueError: a checkpoint that does not fit; no parameter was touched.
            NotImplementedError: a model or a layer this format has no rule for; no parameter was touched.
            PeerError: another rank could not load.
            Exception: a read failed. Parameters may be partly filled, and the server does not start.
        """
        # Here, as they import the layers: every process registers this class, few of them load.
        from vllm_gaudi.loader.agreement import join
        from vllm_gaudi.loader.plan import make_plan
        from vllm_gaudi.loader.rescale import Rescale

        agreement = join(self.settings.patience_seconds)
        try:
            _check_model(model)
            rescale, begin = Rescale(), time.monotonic()
            stored = read_checkpoint(self._folder(model_config))
            plan = make_plan(model, stored, rescale, self.settings.host_bytes)
            logger.info(
                "load plan in %.1f s: %d tensors, %d of them kept by other ranks only, %.2f GB here in %d stacks",
                time.monotonic() - begin, plan.tensors, plan.skipped, plan.kept_bytes / 1e9, len(plan.stacks),
            )  # fmt: skip
            self.totals = load_planned(model, plan, stored, rescale, agreement, self.settings)
        except BaseException as error:
            agreement.fail(error)
            raise
        logger.info("loaded: %s", summary(self.totals))


def _check_model(model: nn.Module) -> None:
    """A model's own `load_weights` may change values as it loads (transpose, fold, rename): only those that say what
    they take, and that they take it unchanged, are planned.
    """
    if not hasattr(model, "checked_tensors"):
        raise NotImplementedError(
            f"{type(model).__name__} does not state which tensors it takes unchanged (`checked_tensors`); load with "
            "--load-format auto"
        )


def load_planned(
    model: nn.Module,
    plan: Plan,
    stored: dict[str, Stored],
    rescale: Rescale,
    agreement: Agreement,
    settings: LoadSettings,
) -> Totals:
    """Fill the parameters of `model` by `plan` of `stored`, together with the other ranks.

    Nothing is written before every rank has a plan, and this returns only when every rank has loaded. Raises as
    `FrontierModelLoader.load_weights`; the caller tells `agreement`.
    """
    from vllm_gaudi.loader.assemble import Assembler, host_limit
    from vllm_gaudi.loader.node import node_line, share

    agreement.meet("plan")
    files = sorted({entry.file for entry in stored.values()})
    sharing = share(agreement, plan, files, settings.chunk_bytes, settings.shared_bytes)
    own = (settings.threads, settings.chunk_bytes, settings.host_bytes)
    logger.info(
        "at most %.3f GB of host memory on this rank, %.3f GB common to its node",
        host_limit(plan, *own) / 1e9, (sharing.ring.size if sharing else 0) / 1e9,
    )  # fmt: skip
    watch = _Watch(plan.kept_bytes, agreement)
    totals = Assembler(plan, dict(model.named_parameters()), rescale.table, *own, watch, sharing, agreement.fail).run()
    watch.tell(totals)
    agreement.give("read_bytes", str(totals.bytes_read).encode())
    agreement.meet("read")
    if line := node_line(agreement, sum(entry.nbytes for entry in stored.values())):
        logger.info("%s", line)
    return totals


def summary(totals: Totals) -> str:
    """What a load cost, in one line."""
    rate = totals.bytes_filled / 1e9 / max(totals.elapsed, 1e-9)
    return (
        f"{totals.bytes_read} bytes read, {totals.bytes_taken} taken from the node's common memory, "
        f"{totals.elapsed:.1f} s, {rate:.2f} GB/s filled; "
        f"{totals.copies} copies, {totals.syncs} syncs, {totals.copying:.1f} s; waited {totals.waited:.1f} s for "
        f"reads; {totals.peak_host} bytes of host memory at most"
    )


class _Watch:
    """Looks after the other ranks, and logs one line for all of them every `EVERY` seconds."""

    def __init__(self, kept_bytes: int, agreement: Agreement) -> None:
        self.kept_bytes, self.agreement, self.begin = kept_bytes, agreement, time.monotonic()
        self.last = self.begin

    def __call__(self, totals: Totals) -> None:
        self.agreement.check()
        now = time.monotonic()
        if now - self.last < EVERY:
            return
        self.last = now
        ranks = self.tell(totals)
        if self.agreement.rank == 0:
            logger.info("loading: %s", progress(ranks, now - self.begin))

    def tell(self, totals: Totals) -> list[tuple[int, int] | None]:
        """Tell the others how far this rank is, and hear how far they are."""
        return self.agreement.tell(min(totals.bytes_filled, self.kept_bytes), self.kept_bytes)


def progress(ranks: list[tuple[int, int] | None], seconds: float) -> str:
    """(bytes filled, bytes to fill) per rank, None where not told -> one line: sum, rate, slowest rank, time left."""
    told = {rank: entry for rank, entry in enumerate(ranks) if entry is not None}
    done, total = (sum(column) for column in zip(*told.values(), strict=True))
    slowest = min(told, key=lambda rank: told[rank][0] / max(1, told[rank][1]))
    read, whole = told[slowest]
    left = f"about {max(0, whole - read) * seconds / read:.0f} s left" if read else "nothing read there yet"
    of = f"{len(ranks)}" if len(told) == len(ranks) else f"{len(told)} of {len(ranks)}"
    return (
        f"{done / 1e9:.1f} of {total / 1e9:.1f} GB on {of} ranks, {done / 1e9 / seconds:.2f} GB/s; slowest is "
        f"rank {slowest} at {100 * read / max(1, whole):.0f} %, {left}"
    )
