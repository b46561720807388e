# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint as all ranks of a node at once: threads of one process, each with its rank's model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rank_model import as_rank, build
from torch.distributed import HashStore
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from vllm_gaudi.loader.agreement import Agreement
from vllm_gaudi.loader.assemble import Totals
from vllm_gaudi.loader.headers import read_checkpoint
from vllm_gaudi.loader.model_loader import LoadSettings, load_planned
from vllm_gaudi.loader.plan import make_plan
from vllm_gaudi.loader.rescale import Rescale
from vllm_gaudi.loader.state_hash import state_digest


@dataclass
class Loaded:
    """One rank: its model, what the load cost, and what it raised if it failed."""

    model: torch.nn.Module
    totals: Totals | None = None
    error: BaseException | None = None

    def digest(self) -> tuple[str, dict[str, str]]:
        """Of the state after processing, as a server would have it; once only."""
        config, device = self.model.vllm_config, torch.device("hpu")
        with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype), device:
            process_weights_after_loading(self.model, config.model_config, device)
        return state_digest(self.model)


def prepare_node(
    folder: Path, tp: int, expert_parallel: bool = False, ranks: int | None = None, **extra: int
) -> tuple[Callable[[], None], list[Loaded]]:
    """An action that loads ranks 0 to `ranks` - 1 (all by default) of `tp` together, and those ranks.

    `extra` are settings of the load format.
    """
    ranks, settings, store = ranks or tp, LoadSettings.of(extra), HashStore()
    stored = read_checkpoint(folder)
    found = []
    for rank in range(ranks):
        model = build(folder, tp, rank, expert_parallel)
        with as_rank(rank, tp):
            found.append((Loaded(model), make_plan(model, stored, Rescale(), settings.host_bytes)))

    def run(rank: int) -> None:
        loaded, plan = found[rank]
        agreement = Agreement(store, rank, ranks)
        try:
            loaded.totals = load_planned(loaded.model, plan, stored, Rescale(), agreement, settings)
        except BaseException as error:
            agreement.fail(error)
            loaded.error = error

    def together() -> None:
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return together, [loaded for loaded, _ in found]


def load_node(*args, **extra) -> list[Loaded]:
    """The ranks of `prepare_node` after the load."""
    run, ranks = prepare_node(*args, **extra)
    run()
    return ranks
