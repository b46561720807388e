# SPDX-License-Identifier: Apache-2.0
"""Every fault model makes a served check fail that is green without it: stock plug-in, tiny checkpoint.

The check: a batch with a chunked prefill gives the tokens and log-probabilities of a clean run, within its memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hpusim_ops import ROOT

from gates.hpusim import checkpoints, testing

pytestmark = [pytest.mark.engine, pytest.mark.long]
# 300 tokens in chunks of 128: the later chunks attend to cached context through an explicit bias.
PROMPTS = [[7 + i % 400 for i in range(300)], [11, 12, 13]]
SAMPLING = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "ignore_eos": True}
ENGINE = {"max_model_len": 512, "max_num_batched_tokens": 128, "max_num_seqs": 2, "enable_chunked_prefill": True}


@dataclass
class Served:
    tokens: list[list[int]]
    logprobs: list
    peak: int


def serve(model: Path, prepare: str | None = None, engine: dict | None = None, **environment: str) -> Served:
    """One offline engine run over PROMPTS; AssertionError with its log when it fails."""
    path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    run = testing.run_engine(
        model, [{"prompts": PROMPTS, "sampling": SAMPLING}], mode="lazy_eager", prepare=prepare,
        env={"PYTHONPATH": path, **environment}, **{**ENGINE, **(engine or {})},
    )  # fmt: skip
    logprobs = [output["choices"][0]["logprobs"] for output in run.outputs(0)]
    return Served(run.tokens(0), logprobs, max(summary["memory_peak"] for summary in run.meters))


def outcome(*args, **kwargs) -> list[list[int]] | str:
    """Tokens of `serve`, or the log of the run that failed."""
    try:
        return serve(*args, **kwargs).tokens
    except AssertionError as error:
        return str(error)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.make("llama", tmp_path_factory.mktemp("faults"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def clean(model):
    return serve(model)


def test_check_is_green_and_repeats(model, clean):
    again = serve(model)
    assert (again.tokens, again.logprobs) == (clean.tokens, clean.logprobs)
    assert again.peak <= clean.peak * 1.02


def test_retained_workspace_gives_nan_logits(model, clean):
    served = serve(model, HPUSIM_FAULT_ATTENTION_WORKSPACE="nan,limit=16K")
    assert served.tokens[0] != clean.tokens[0]
    assert served.tokens[1] == clean.tokens[1], "the prompt without cached context is untouched"


def test_retained_workspace_runs_out_of_memory(model, clean):
    with pytest.raises(AssertionError, match=r"FusedSDPA keeps \d+ bytes of workspace"):
        serve(model, HPUSIM_FAULT_ATTENTION_WORKSPACE="oom,limit=16K")


def test_run_ahead_breaks_the_memory_bound(model, clean):
    served = serve(model, HPUSIM_FAULT_RUN_AHEAD="on")
    assert served.tokens == clean.tokens
    assert served.peak > clean.peak * 1.02


def test_unwaited_copy_gives_garbage_tokens(model, clean):
    asynchronous = {"async_scheduling": True}
    unharmed = serve(model, "fault_mutants:never_wait", asynchronous)
    assert unharmed.tokens == clean.tokens, "the mistake does not show on a device that copies at once"
    assert outcome(model, "fault_mutants:never_wait", asynchronous, HPUSIM_FAULT_ASYNC_COPY="on") != unharmed.tokens


def test_waited_copies_survive(model, clean):
    served = serve(model, None, {"async_scheduling": True}, HPUSIM_FAULT_ASYNC_COPY="on")
    assert (served.tokens, served.logprobs) == (clean.tokens, clean.logprobs)


def test_masked_junk_is_harmless_unless_it_is_nan(model, clean):
    huge = serve(model, HPUSIM_FAULT_POISON="kv,value=huge")
    assert (huge.tokens, huge.logprobs) == (clean.tokens, clean.logprobs)
    nan = serve(model, HPUSIM_FAULT_POISON="kv,value=nan")
    assert nan.tokens != clean.tokens


def test_dropped_round_trips_change_the_log_probabilities(model, clean):
    served = serve(model, HPUSIM_FAULT_ROUND_TRIP="on")
    assert served.logprobs != clean.logprobs


def test_a_rank_that_dies_takes_the_engine_down(model, clean):
    two = {"tensor_parallel_size": 2}
    with pytest.raises(AssertionError, match="rank 1 will die in"):
        serve(model, None, two, HPUSIM_FAULT_COLLECTIVE="die,rank=1,after=40")
