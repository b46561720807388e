# SPDX-License-Identifier: Apache-2.0
"""Every fault model makes a served check fail that is green without it: stock plug-in, tiny checkpoint.

The check: a batch with a chunked prefill gives the tokens and log-probabilities of a clean run, within its memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fault_scenarios import PROMPTS, SCENARIOS
from hpusim_ops import ROOT

from gates.hpusim import checkpoints, testing

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENGINE = {
    "max_model_len": 512, "max_num_batched_tokens": 128, "max_num_seqs": 2, "enable_chunked_prefill": True,
    "async_scheduling": True,
}  # fmt: skip
PATH = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.make("llama", tmp_path_factory.mktemp("faults"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def served(model):
    """Outcome of every scenario on one engine."""
    run = testing.run_engine(
        model, [], mode="lazy_eager", call="fault_scenarios:run", env={"PYTHONPATH": PATH}, timeout=900, **ENGINE
    )
    results = run.answer["call"]
    assert list(results) == list(SCENARIOS)
    return results


def answer(result):
    return result.get("tokens"), result.get("logprobs")


@pytest.mark.parametrize("name", ["again", "copies", "never wait", "junk", "run ahead", "recovered"])
def test_answer_is_that_of_a_clean_run(served, name):
    """Repeats exactly; and neither waited copies nor masked junk nor run-ahead change an answer of correct code."""
    assert answer(served[name]) == answer(served["clean"])


def test_memory_repeats(served):
    assert served["again"]["peak"] == served["clean"]["peak"] == served["recovered"]["peak"]


def test_retained_workspace_gives_nan_logits(served):
    assert "nan" in str(served["workspace nan"]["logprobs"][0])
    assert served["workspace nan"]["tokens"][0] != served["clean"]["tokens"][0]
    assert served["workspace nan"]["tokens"][1] == served["clean"]["tokens"][1], "a prompt without context is untouched"


def test_retained_workspace_runs_out_of_memory(served):
    assert "FusedSDPA keeps" in served["workspace oom"]["error"]


def test_run_ahead_breaks_the_memory_bound(served):
    assert served["run ahead"]["peak"] > 1.2 * served["clean"]["peak"]


def test_a_copy_nobody_waits_for_gives_garbage(served):
    assert answer(served["never wait, copies"]) != answer(served["clean"])


def test_nan_where_nothing_was_written_gets_into_the_answer(served):
    """The plug-in multiplies padding blocks by zero, which NaN survives."""
    assert answer(served["nan"]) != answer(served["clean"])


def test_dropped_round_trips_change_the_log_probabilities(served):
    assert served["round trip"]["logprobs"] != served["clean"]["logprobs"]


def test_a_rank_that_dies_takes_the_engine_down(model):
    sampling = {"temperature": 0, "max_tokens": 4}
    with pytest.raises(AssertionError, match="rank 1 will die in"):
        testing.run_engine(
            model, [{"prompts": PROMPTS, "sampling": sampling}], mode="lazy_eager", tensor_parallel_size=2,
            env={"PYTHONPATH": PATH, "HPUSIM_FAULT_COLLECTIVE": "die,rank=1,after=20"}, **ENGINE,
        )  # fmt: skip
