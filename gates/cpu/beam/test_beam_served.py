# SPDX-License-Identifier: Apache-2.0
"""A small Beam served over HTTP on the emulated device, scored token by token against the CPU references.

Prompts lie below, at and beyond the window of 256; a budget of 256 tokens a
step makes prefill chunked. Every comparison is on the served text itself.
"""

import pytest
import served
import torch
from served import (
    FACTOR,
    FEW_BLOCKS,
    GAP_FACTOR,
    PATIENCE,
    UNCACHED,
    accept,
    ask,
    ask_at_once,
    metric,
    prompts,
    score,
)

from gates.hpusim import testing

pytestmark = pytest.mark.engine

COUNT = 12
LENGTHS = (5, 255, 257, 530)


@pytest.fixture(scope="module")
def fp8(checkpoint):
    return checkpoint("served", 17, fp8=True)


@pytest.fixture(scope="module")
def bf16(checkpoint):
    return checkpoint("served", 17)


@pytest.fixture(scope="module")
def tp1(fp8):
    """Whole prefill with a prefix cache: each prompt asked twice."""
    with testing.serve(fp8, timeout=PATIENCE, max_num_batched_tokens=1024, enable_prefix_caching=True) as server:
        answers = ask(server, prompts(LENGTHS), COUNT)
        again = ask(server, prompts(LENGTHS), COUNT)
        hits = metric(server, "vllm:prefix_cache_hits_total")
        twice = [_prompt_logprobs(server, prompts(LENGTHS)[2]) for _ in range(2)]
        yield answers, again, hits, server.log(), twice


@pytest.fixture(scope="module")
def tp2ep2(fp8):
    """Chunked prefill, two ranks, experts split between them."""
    with testing.serve(
        fp8,
        "--enable-expert-parallel",
        timeout=PATIENCE,
        max_num_batched_tokens=256,
        tensor_parallel_size=2,
        enable_prefix_caching=False,
        env=UNCACHED,
    ) as server:
        yield ask(server, prompts(LENGTHS), COUNT)


def _prompt_logprobs(server, prompt: list[int]) -> list[float]:
    """Log-probability of every prompt token but the first."""
    extra = {"prompt_logprobs": 0, "ignore_eos": True}
    answer = server.client.completions.create(
        model="tiny", prompt=prompt, max_tokens=1, temperature=0, extra_body=extra
    )
    places = answer.choices[0].model_extra["prompt_logprobs"][1:]
    return [place[str(token)]["logprob"] for place, token in zip(places, prompt[1:], strict=True)]


def test_prompt_logprobs_are_the_same_with_a_warm_cache(tp1, fp8):
    """And those of the reference, so that both are not stale alike."""
    first, second = tp1[4]
    assert first == pytest.approx(second, abs=1e-5)
    prompt = torch.tensor(prompts(LENGTHS)[2])
    logprobs = served.BeamReference(fp8, "w8a8")(prompt).log_softmax(-1)
    expected = logprobs[:-1].gather(-1, prompt[1:, None])[:, 0]
    mean = (torch.tensor(first) - expected).abs().mean().item()
    print(f"prompt logprobs: mean difference {mean:.4f}")
    assert mean < 0.3


def test_one_rank_and_split_experts_differ_by_no_more_than_the_floor(tp1, tp2ep2, fp8):
    """Whole prefill on one rank against chunked prefill on two."""
    floor = score(fp8, tp1[0], "w8a8").floor
    difference = served.mean_difference(tp1[0], tp2ep2)
    print(f"TP1 against TP2 EP2: mean |dlogprob| {difference:.4f} (floor {floor:.4f})")
    assert difference <= GAP_FACTOR * floor


def test_fp8_on_one_rank_follows_the_w8a8_reference(tp1, fp8):
    accept(score(fp8, tp1[0], "w8a8"), "FP8 TP1, whole prefill")


def test_prefix_cache_changes_nothing_beyond_the_floor(tp1, fp8):
    _, again, hits, *_ = tp1
    assert hits >= 128 * (1 + 2 + 4), "the second round must have hit the cache"
    accept(score(fp8, again, "w8a8"), "FP8 TP1, cached prefixes")


def test_log_tells_the_census(tp1):
    assert "Beam checkpoint: 532 tensors (244 float32, 236 float8_e4m3fn, 52 bfloat16)" in tp1[3]


def test_fp8_on_two_ranks_with_split_experts_follows_the_w8a8_reference(tp2ep2, fp8):
    accept(score(fp8, tp2ep2, "w8a8", row_slices=2), "FP8 TP2 EP2, chunked prefill")


def test_the_measure_tells_a_wrong_window_from_noise(tp1, fp8, monkeypatch):
    """Control: a reference with the window of a decode that is one block short."""
    right = served.BeamReference

    def narrowed(*args, **kwargs):
        from dataclasses import replace

        reference = right(*args, **kwargs)
        reference.shape = replace(reference.shape, sliding_window=192)
        return reference

    monkeypatch.setattr(served, "BeamReference", narrowed)
    result = served.score(fp8, [answer for answer in tp1[0] if len(answer.prompt) > 256], "w8a8")
    print(f"window 192: {result.line()}")
    assert result.served > FACTOR * result.floor


def test_bf16_preempted_with_prefix_cache_follows_the_bf16_reference(bf16):
    """Four requests at once that grow beyond the cache: someone must wait and start over."""
    lengths = (100, 110, 120, 90)
    with testing.serve(
        bf16,
        timeout=PATIENCE,
        max_num_batched_tokens=256,
        enable_prefix_caching=True,
        num_gpu_blocks_override=FEW_BLOCKS,
        max_model_len=512,
    ) as server:
        answers = ask_at_once(server, prompts(lengths), 60)
        preemptions = metric(server, "vllm:num_preemptions_total")
    assert preemptions >= 1
    accept(score(bf16, answers, "bf16"), f"BF16 TP1, {preemptions:.0f} preemptions")


@pytest.mark.long
def test_split_experts_in_slices_follow_the_reference_of_tensor_parallelism(fp8):
    """Each expert whole on one rank, but quantised as if two ranks held halves of it."""
    with testing.serve(
        fp8,
        "--enable-expert-parallel",
        timeout=PATIENCE,
        max_num_batched_tokens=256,
        tensor_parallel_size=2,
        env={"VLLM_BEAM_EXPERT_SLICES": "2"},
    ) as server:
        answers = ask(server, prompts(LENGTHS), COUNT)
    accept(score(fp8, answers, "w8a8", row_slices=2, expert_slices=2), "FP8 TP2 EP2, experts in two slices")
