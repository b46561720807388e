# SPDX-License-Identifier: Apache-2.0
"""The load format in a real server on two ranks: the state and the tokens are those of the stock loader."""

import os
import re
import signal
import threading

import pytest
from served import ask
from test_load_faults import truncate

from gates.checkpoints import beam, muse
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.muse_shapes import SHAPES as MUSE_SHAPES
from gates.hpusim import testing, tokenizer
from vllm_gaudi.loader.state_hash import VARIABLE

pytestmark = [pytest.mark.engine, pytest.mark.long]
HASH = re.compile(r"state hash of tensor-parallel rank (\d) of 2: ([0-9a-f]{64})")


@pytest.fixture(scope="module")
def served_checkpoint(tmp_path_factory):
    return beam.write(tmp_path_factory.mktemp("served"), SHAPES["served"], fp8=True)


def outcome(folder, load_format, *options):
    """(digest by rank, generated tokens, log) of one server."""
    with testing.serve(
        folder, *options, load_format=load_format, tensor_parallel_size=2, env={VARIABLE: "1"}, timeout=900
    ) as server:
        answers = ask(server, [[5, 6, 7], list(range(40, 340))], 8)
        log = server.log()
    return dict(HASH.findall(log)), [answer.ids for answer in answers], log


@pytest.fixture(scope="module")
def served_muse(tmp_path_factory):
    path = muse.write(tmp_path_factory.mktemp("served-muse"), MUSE_SHAPES["served"], how=muse.SERVED, mxfp4=True)
    tokenizer.save(path)
    return path


@pytest.mark.parametrize("model", ["beam", "muse"])
def test_served_state_and_tokens_are_those_of_the_stock_loader(request, model):
    if model == "beam":
        folder, options = request.getfixturevalue("served_checkpoint"), ["--enable-expert-parallel"]
    else:
        folder, options = request.getfixturevalue("served_muse"), []
    stock, ours = outcome(folder, "auto", *options), outcome(folder, "frontier", *options)
    assert set(stock[0]) == {"0", "1"}
    assert stock[0]["0"] != stock[0]["1"]
    assert stock[:2] == ours[:2]
    assert "load plan in" in ours[2]
    assert "load plan in" not in stock[2]
    said = re.search(r"2 ranks of this node read (\d+) bytes of a checkpoint of (\d+)", ours[2])
    assert int(said[1]) <= 1.02 * int(said[2])


def test_a_truncated_shard_never_serves(served_checkpoint, tmp_path):
    import shutil

    folder = shutil.copytree(served_checkpoint, tmp_path / "bad")
    truncate(folder)
    log = tmp_path / "log"
    with (
        pytest.raises(AssertionError, match="server ended with code"),
        testing.serve(folder, load_format="beam", tensor_parallel_size=2, log=log),
    ):
        pytest.fail("it serves")
    assert re.search(r"CheckpointError: .*tensor .* at offset \d+ .*truncated", log.read_text())


def kill_when(log, pattern, stop):
    """Kill the process whose id is the group of `pattern` once the log says so."""
    while not stop.wait(0.02):
        found = re.search(pattern, log.read_text()) if log.exists() else None
        if found:
            os.kill(int(found[1]), signal.SIGKILL)
            return


@pytest.mark.parametrize("stage", ["load plan in", "at most .* of host memory"])
def test_a_rank_killed_while_a_server_loads_ends_it(served_checkpoint, tmp_path, stage):
    log, stop = tmp_path / "log", threading.Event()
    killer = threading.Thread(target=kill_when, args=(log, rf"Worker_TP1\S* pid=(\d+)\).*{stage}", stop))
    killer.start()
    try:
        with (
            pytest.raises(AssertionError, match="server ended with code"),
            # Reads of a few bytes: the load takes long enough to be hit in it.
            testing.serve(
                served_checkpoint,
                "--model-loader-extra-config",
                '{"threads": 1, "chunk_bytes": 16, "host_bytes": 20000}',
                load_format="beam",
                tensor_parallel_size=2,
                log=log,
            ),
        ):
            pytest.fail("it serves")
    finally:
        stop.set()
        killer.join()
    text = log.read_text()
    assert "Application startup complete" not in text
    assert re.search(r"rank 1 \(process \d+\) died while loading|store that the ranks share is gone", text) or (
        "WorkerProc" in text and "died" in text
    ), text[-3000:]
