# SPDX-License-Identifier: Apache-2.0
"""The load format in a real server on two ranks: the state and the tokens are those of the stock loader."""

import re

import pytest
from served import ask
from test_load_faults import truncate

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.hpusim import testing
from vllm_gaudi.loader.state_hash import VARIABLE

pytestmark = [pytest.mark.engine, pytest.mark.long]
HASH = re.compile(r"state hash of tensor-parallel rank (\d) of 2: ([0-9a-f]{64})")


@pytest.fixture(scope="module")
def served_checkpoint(tmp_path_factory):
    return beam.write(tmp_path_factory.mktemp("served"), SHAPES["served"], fp8=True)


def outcome(folder, load_format):
    """(digest by rank, generated tokens, log) of one server."""
    with testing.serve(
        folder, "--enable-expert-parallel", load_format=load_format, tensor_parallel_size=2, env={VARIABLE: "1"}
    ) as server:
        answers = ask(server, [[5, 6, 7], list(range(40, 340))], 8)
        log = server.log()
    return dict(HASH.findall(log)), [answer.ids for answer in answers], log


def test_served_state_and_tokens_are_those_of_the_stock_loader(served_checkpoint):
    stock, ours = outcome(served_checkpoint, "auto"), outcome(served_checkpoint, "beam")
    assert set(stock[0]) == {"0", "1"}
    assert stock[0]["0"] != stock[0]["1"]
    assert stock[:2] == ours[:2]
    assert "load plan in" in ours[2]
    assert "load plan in" not in stock[2]


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
