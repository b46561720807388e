# SPDX-License-Identifier: Apache-2.0
"""Eight emulated ranks against one: two expert groups of four, eight groups, and one."""

from __future__ import annotations

import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.cpu.beam.served import Answer, mean_difference
from gates.cpu.muse.served_floor import FACTOR, GAP_FACTOR, distances
from gates.hpusim import testing, tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.long]

COUNT = 6
RANKS = 8
PATIENCE = 3000  # seconds for an engine run; a busy machine must not decide a test


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(340, (length,), generator=generator).tolist() for length in (5, 300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = muse.write(tmp_path_factory.mktemp("muse-ranks"), SHAPES["served"], how=muse.SERVED, mxfp4=True)
    tokenizer.save(path)
    return path


def run(folder, ranks: int, **environment: str) -> tuple[list[Answer], testing.Run]:
    """Greedy answers to `prompts` with the best tokens' log-probabilities."""
    sampling = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "logprobs": 5}
    made = testing.run_engine(
        folder,
        [{"prompts": prompts(), "sampling": sampling}],
        in_process=ranks == 1,
        timeout=PATIENCE,
        env={"VLLM_SKIP_WARMUP": "true", **environment},
        tensor_parallel_size=ranks,
        max_num_batched_tokens=256,
        max_model_len=512,
    )
    answers = []
    for prompt, output in zip(prompts(), made.outputs(0), strict=True):
        choice = output["choices"][0]
        top = [{int(t): value for t, value in place.items()} for place in choice["logprobs"]]
        answers.append(Answer(prompt, choice["token_ids"], top))
    return answers, made


@pytest.fixture(scope="module")
def one(folder):
    return run(folder, 1)[0]


@pytest.mark.parametrize("groups", [2, 8, 1], ids=["EP2xTP4", "EP8", "TP8"])
def test_eight_ranks_are_one_within_the_floor(folder, one, groups):
    chosen = {} if groups == 2 else {"VLLM_MUSE_EXPERT_GROUPS": str(groups)}  # two groups are the default
    answers, made = run(folder, RANKS, **chosen)
    slices = RANKS // groups
    found = distances(folder, answers, expert_slices=slices)
    between = mean_difference(one, answers)
    print(f"{groups} groups of {slices}: {found}; to one rank {between:.4f}")
    assert found.served <= FACTOR * found.floor
    assert found.worst_gap <= GAP_FACTOR * found.floor_gap
    assert between <= FACTOR * found.floor
    workers = [summary for summary in made.meters if summary["steps"].get("decode")]
    assert len(workers) == RANKS
    layers, local = SHAPES["served"]["num_hidden_layers"], SHAPES["served"]["num_local_experts"] // groups
    for summary in workers:
        steps, phase = summary["steps"]["decode"], summary["phases"]["decode"]
        assert phase["collectives"]["by"]["all_reduce float32"] == layers * steps
        assert phase["moe_tensor_inputs_max"] == 4 * local + 3
