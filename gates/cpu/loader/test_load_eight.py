# SPDX-License-Identifier: Apache-2.0
"""Eight real processes load one checkpoint together: state of the stock loader, and each byte read once."""

import socket

import pytest
from processes import PROCESSES
from rank_model import as_world, load

from vllm_gaudi.loader.headers import read_checkpoint
from vllm_gaudi.loader.state_hash import state_digest

pytestmark = pytest.mark.long
RANKS = 8


def _rank(folder, port, rank, expert_parallel, says):
    from vllm.model_executor.model_loader import get_model_loader

    try:
        with as_world(folder, "frontier", RANKS, rank, f"tcp://127.0.0.1:{port}", expert_parallel) as config:
            loader = get_model_loader(config.load_config)
            model = loader.load_model(vllm_config=config, model_config=config.model_config)
        says.put((rank, state_digest(model), loader.totals.bytes_read))
    except Exception as error:
        says.put((rank, f"{type(error).__name__}: {error}", 0))


@pytest.mark.parametrize(
    ("layout", "expert_parallel"), [({"fp8": True}, True), ({"fp8": True}, False), ({"mxfp4": True}, True)]
)
def test_eight_processes_load_as_stock_does_and_read_once(checkpoint, layout, expert_parallel):
    folder = checkpoint(**layout)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    says = PROCESSES.Queue()
    arguments = [(folder, port, rank, expert_parallel, says) for rank in range(RANKS)]
    processes = [PROCESSES.Process(target=_rank, args=each) for each in arguments]
    for process in processes:
        process.start()
    try:
        heard = sorted(says.get(timeout=400) for _ in range(RANKS))
    finally:
        for process in processes:
            process.kill()
            process.join()
    expected = [state_digest(load(folder, "auto", RANKS, rank, expert_parallel)) for rank in range(RANKS)]
    assert [digest for _, digest, _ in heard] == expected
    size = sum(entry.nbytes for entry in read_checkpoint(folder).values())
    assert 0.98 * size <= sum(read for *_, read in heard) <= 1.02 * size
