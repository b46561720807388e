# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed at any stage of a load ends it on the others, which say so; real processes sharing reads."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import PROCESSES
from safetensors.torch import save_file
from torch.distributed import FileStore

from vllm_gaudi.loader import assemble, exchange, model_loader, node, reader
from vllm_gaudi.loader.agreement import Agreement
from vllm_gaudi.loader.headers import read_checkpoint
from vllm_gaudi.loader.plan import DTYPES, Plan
from vllm_gaudi.loader.region import Region
from vllm_gaudi.loader.stacks import Move, Source, Stack

RANKS, TENSORS, WIDTH = 3, 12, 32
SETTINGS = model_loader.LoadSettings(threads=2, chunk_bytes=2000, shared_bytes=9000)


def sliced(folder: Path, rank: int):
    """(model, plan, headers) of a rank that keeps a slice of the columns of every tensor."""
    stored, model, stacks = read_checkpoint(folder), torch.nn.Module(), []
    for index, (name, entry) in enumerate(sorted(stored.items())):
        parameter = torch.nn.Parameter(torch.zeros(entry.shape[0], WIDTH, dtype=torch.uint8), requires_grad=False)
        model.register_parameter(f"p{index}", parameter)
        source = Source(name, entry.file, entry.offset, DTYPES[entry.dtype], entry.shape)
        stack = Stack(f"p{index}", torch.uint8)
        stack.add(f"p{index}", 0, entry.shape[0], WIDTH)
        stack.moves.append(Move(source, Region(f"p{index}", 0, rank * WIDTH, entry.shape[0], WIDTH), False))
        stacks.append(stack)
    return model, Plan(stacks, {f"p{index}": index for index in range(len(stacks))}, len(stacks), 0), stored


def _die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def _at_call(number, real):
    calls = iter(range(1 << 30))
    return lambda *args, **kwargs: _die() if next(calls) == number else real(*args, **kwargs)


STAGES = {
    "before the plan is agreed": (Agreement, "meet", 0),
    "before it tells its needs": (node, "_exchange", 0),
    "before it maps the memory": (node, "accept", 0),
    "while it reads": (reader.Files, "read", 3),
    "before it reads what it owes": (exchange.Exchange, "_read_for_node", 2),
    "while it takes": (reader, "put", 5),
    "while it copies": (assemble.Assembler, "_copy", 4),
    "before the load is agreed": (Agreement, "meet", 1),
}


def _rank(folder, store, rank, victim, stage, says):
    if rank == victim:
        owner, name, number = STAGES[stage]
        setattr(owner, name, _at_call(number, getattr(owner, name)))
    agreement = Agreement(FileStore(store, RANKS), rank, RANKS)
    try:
        model, plan, stored = sliced(Path(folder), rank)
        model_loader.load_planned(model, plan, stored, SimpleNamespace(table=None), agreement, SETTINGS)
        says.put((rank, [bytes(value.flatten().numpy()) for value in model.parameters()]))
    except Exception as error:
        agreement.fail(error)
        says.put((rank, f"{type(error).__name__}: {error}"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sliced")
    data = torch.Generator().manual_seed(5)
    save_file(
        {f"t{i:02}": torch.randint(256, (50, RANKS * WIDTH), generator=data).to(torch.uint8) for i in range(TENSORS)},
        folder / "m.safetensors",
    )
    return folder


def load(folder, place, victim=None, stage=None):
    """What each rank that lived said; all have ended."""
    says = PROCESSES.Queue()
    arguments = [(str(folder), str(place / "store"), rank, victim, stage, says) for rank in range(RANKS)]
    processes = [PROCESSES.Process(target=_rank, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        heard = dict(says.get(timeout=120) for _ in range(RANKS - (victim is not None)))
        for process in processes:
            process.join(30)
        assert all(process.exitcode is not None for process in processes)
        if victim is not None:
            assert processes[victim].exitcode == -signal.SIGKILL
    finally:
        for process in processes:
            process.kill()
            process.join()
    return heard


def test_ranks_in_processes_of_their_own_get_their_slices(folder, tmp_path):
    from safetensors.torch import load_file

    heard = load(folder, tmp_path)
    tensors = [value for _, value in sorted(load_file(folder / "m.safetensors").items())]
    for rank in range(RANKS):
        columns = slice(rank * WIDTH, (rank + 1) * WIDTH)
        assert heard[rank] == [bytes(value[:, columns].flatten().numpy()) for value in tensors]


DEFAULT = {("while it reads", 1), ("before it maps the memory", 0)}


@pytest.mark.parametrize(
    ("stage", "victim"),
    [
        pytest.param(stage, victim, marks=() if (stage, victim) in DEFAULT else pytest.mark.long)
        for stage in STAGES
        for victim in (0, 1)
    ],
)
def test_a_killed_rank_ends_the_load_of_all(folder, tmp_path, stage, victim):
    heard = load(folder, tmp_path, victim, stage)
    assert len(heard) == RANKS - 1
    for said in heard.values():
        assert re.match(rf"PeerError: rank {victim} \(process \d+\) died while loading", said), said
