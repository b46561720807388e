# SPDX-License-Identifier: Apache-2.0
"""Every fault model makes a served check fail that is green without it: stock plug-in, tiny checkpoint.

The check: a batch with a chunked prefill gives the tokens and log-probabilities of a clean run, within its memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fault_scenarios import LOST_RANK, PROMPTS, SCENARIOS
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


HARMLESS = [
    "again", "copies", "never wait", "junk", "times zero", "fresh junk", "reads fresh", "run ahead", "recovered",
]  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_answer_is_that_of_a_clean_run(served, name):
    """Repeats exactly; and neither waited copies nor masked junk nor run-ahead change an answer of correct code."""
    assert answer(served[name]) == answer(served["clean"])


def test_memory_repeats(served):
    """Once the first batch has made what it keeps."""
    peaks = [served[name]["peak"] for name in ("again", "copies", "recovered")]
    assert max(peaks) < 1.05 * min(peaks)


def test_retained_workspace_gives_nan_logits(served):
    spoiled, clean = served["workspace nan"], served["clean"]
    assert "nan" in str(spoiled["logprobs"][0])
    assert spoiled["tokens"][0] != clean["tokens"][0]
    # The prompt without cached context starts right; then the other's NaN reaches it through the decode batch, where
    # the plug-in gathers blocks by multiplying with zeros and ones.
    assert spoiled["tokens"][1][0] == clean["tokens"][1][0]
    assert spoiled["tokens"][1] != clean["tokens"][1]


def test_retained_workspace_runs_out_of_memory(served):
    assert "FusedSDPA keeps" in served["workspace oom"]["error"]


def test_run_ahead_breaks_the_memory_bound(served):
    assert served["run ahead"]["peak"] > 1.2 * served["again"]["peak"]


def test_a_copy_nobody_waits_for_gives_garbage(served):
    assert answer(served["never wait, copies"]) != answer(served["clean"])


def test_junk_was_there(served):
    assert served["junk"]["junk_blocks"] > 0
    assert served["clean"]["junk_blocks"] == 0


def test_nan_in_the_null_block_shows_who_touches_it(served):
    assert answer(served["times zero, nan"]) != answer(served["clean"])


def test_fresh_memory_that_is_read_gives_another_answer(served):
    assert answer(served["reads fresh, poison"]) != answer(served["clean"])


def test_dropped_round_trips_change_the_log_probabilities(served):
    assert served["rounded, round trip"]["logprobs"] != served["rounded"]["logprobs"]
    assert served["rounded, round trip"]["tokens"][0][0] == served["rounded"]["tokens"][0][0]


@pytest.mark.parametrize(("fault", "found"), LOST_RANK.items())
def test_a_lost_rank_takes_the_engine_down(fault, found, model):
    """Its peer loses it in the collective, or the engine's own limit for a step ends the wait: never a silent hang."""
    sampling = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    env = {"PYTHONPATH": PATH, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "30"}
    if fault:
        env["HPUSIM_FAULT_COLLECTIVE"] = fault

    def run():
        batch = {"prompts": PROMPTS, "sampling": sampling}
        return testing.run_engine(
            model, [batch], mode="lazy_eager", tensor_parallel_size=2, env=env, timeout=240, **ENGINE
        )

    if fault is None:
        assert [len(tokens) for tokens in run().tokens(0)] == [4, 4]
        return
    with pytest.raises(AssertionError, match=found) as ended:
        run()
    assert "engine run: timed out" not in str(ended.value), "the engine has to end by itself"
