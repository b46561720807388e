# SPDX-License-Identifier: Apache-2.0
"""FP8 served in every combination: ranks x prefill x prefix cache, each with and without preemption.

Every server answers prompts around the window of 256 one after the other, each
twice, then short ones all at once on a cache that cannot hold them, so that some
are preempted and start over, then free requests beside some under a grammar. A
combination is served once and its answers are kept; pairs of them are compared.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import served
from served import (
    FACTOR,
    FEW_BLOCKS,
    GAP_FACTOR,
    PATIENCE,
    UNCACHED,
    Answer,
    accept,
    ask,
    ask_at_once,
    metric,
    prompts,
    score,
)

from gates.hpusim import testing

pytestmark = [pytest.mark.engine, pytest.mark.long]

COUNT = 12
LENGTHS = (5, 255, 256, 257, 530)
CROWD = (100, 110, 120, 90)  # four requests of two blocks each and growing
DIGITS = re.compile("[0-9]{5}")
RANKS = {"tp1": ([], 1), "tp2": ([], 2), "tp2ep2": (["--enable-expert-parallel"], 2)}
# Rows of o_proj and down_proj, and experts' intermediates, are quantised in as many parts as ranks hold them.
SLICES = {"tp1": {}, "tp2": {"row_slices": 2, "expert_slices": 2}, "tp2ep2": {"row_slices": 2}}
BUDGET = {"whole": 1024, "chunked": 256}


@dataclass
class Served:
    """What one server answered."""

    alone: list[Answer]
    again: list[Answer]
    crowd: list[Answer]
    free: list[Answer]
    held: list[str]
    hits: float
    preemptions: float
    log: str


@pytest.fixture(scope="module")
def fp8(checkpoint):
    return checkpoint("served", 17, fp8=True)


@pytest.fixture(scope="module")
def serve_once(fp8):
    """Factory: (ranks, prefill, cache on, environment) -> Served, kept for the module."""
    made: dict[tuple, Served] = {}

    def make(ranks: str, prefill: str, cache: bool, **environment: str) -> Served:
        key = (ranks, prefill, cache, tuple(sorted(environment.items())))
        if key not in made:
            made[key] = _serve(fp8, ranks, prefill, cache, environment)
        return made[key]

    return make


def _serve(fp8, ranks: str, prefill: str, cache: bool, environment: dict[str, str]) -> Served:
    flags, size = RANKS[ranks]
    with testing.serve(
        fp8,
        *flags,
        timeout=PATIENCE,
        env={**environment, **({} if cache else UNCACHED)},
        tensor_parallel_size=size,
        max_num_batched_tokens=BUDGET[prefill],
        enable_prefix_caching=cache,
        num_gpu_blocks_override=FEW_BLOCKS,
        max_model_len=640,
    ) as server:
        # Each prompt twice in a row: later ones take its blocks.
        pairs = [ask(server, [prompt, prompt], COUNT) for prompt in prompts(LENGTHS)]
        alone, again = ([pair[i] for pair in pairs] for i in (0, 1))
        hits, before = (metric(server, f"vllm:{name}_total") for name in ("prefix_cache_hits", "num_preemptions"))
        assert before == 0
        crowd = ask_at_once(server, prompts(CROWD), 60)
        preemptions = metric(server, "vllm:num_preemptions_total")
        free, held = _mixed(server)
        return Served(alone, again, crowd, free, held, hits, preemptions, server.log())


def _mixed(server) -> tuple[list[Answer], list[str]]:
    """Two free answers and the texts of two that a grammar holds, all in flight together."""

    def hold(prompt: str) -> str:
        extra = {"structured_outputs": {"regex": DIGITS.pattern}}
        answer = server.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=16, temperature=0, extra_body=extra
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(4) as pool:
        held = [pool.submit(hold, prompt) for prompt in ("five digits: ", "a number, please")]
        free = [pool.submit(ask, server, [prompt], 16) for prompt in prompts((30, 50))]
        return [answer for future in free for answer in future.result()], [future.result() for future in held]


def option(log: str, name: str) -> str:
    """Value of `name` in the arguments the engine logs at its start."""
    found = re.search(rf"'?\b{name}'?[=:] ?([^,\s}}]+)", log)
    assert found, name
    return found[1]


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("prefill", BUDGET)
@pytest.mark.parametrize("ranks", RANKS)
def test_every_combination_follows_the_w8a8_reference(serve_once, fp8, ranks, prefill, cache):
    result = serve_once(ranks, prefill, cache)
    assert option(result.log, "enable_prefix_caching") == str(cache)
    assert "windowed KV: groups of" in result.log
    # At most the whole blocks of 128 before the last token of each repeated prompt, at least those of the longest.
    most, least = 128 * sum((length - 1) // 128 for length in LENGTHS), 128 * ((LENGTHS[-1] - 1) // 128)
    assert least <= result.hits <= most if cache else result.hits == 0
    assert result.preemptions >= 1
    what = f"FP8 {ranks}, {prefill}, prefix cache {'on' if cache else 'off'}"
    accept(score(fp8, result.alone, "w8a8", **SLICES[ranks]), what)
    accept(score(fp8, result.again, "w8a8", **SLICES[ranks]), f"{what}, {result.hits:.0f} tokens from the cache")
    accept(score(fp8, result.crowd, "w8a8", **SLICES[ranks]), f"{what}, {result.preemptions:.0f} preemptions")
    # A grammar's mask must not reach the free requests of the same batch.
    assert all(DIGITS.fullmatch(text) for text in result.held), result.held
    accept(score(fp8, result.free, "w8a8", **SLICES[ranks]), f"{what}, beside requests under a grammar")


PAIRS = {
    "chunked against whole, one rank": (("tp1", "whole", False), ("tp1", "chunked", False)),
    "chunked against whole, two ranks": (("tp2", "whole", False), ("tp2", "chunked", False)),
    "chunked against whole, split experts": (("tp2ep2", "whole", False), ("tp2ep2", "chunked", False)),
    "EP against TP, whole": (("tp2ep2", "whole", False), ("tp2", "whole", False)),
    "EP against TP, chunked": (("tp2ep2", "chunked", False), ("tp2", "chunked", False)),
    "EP against one rank": (("tp2ep2", "whole", False), ("tp1", "whole", False)),
    "prefix cache, one rank": (("tp1", "whole", True), ("tp1", "whole", False)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_runs_of_one_checkpoint_differ_by_no_more_than_the_floor(serve_once, fp8, pair):
    one, other = (serve_once(*key) for key in PAIRS[pair])
    floor = score(fp8, one.alone, "w8a8", **SLICES[PAIRS[pair][0][0]]).floor
    difference = served.mean_difference(one.alone, other.alone)
    print(f"{pair}: mean |dlogprob| {difference:.4f} (floor {floor:.4f})")
    assert difference <= FACTOR * floor


def test_exact_mode_serves_what_the_plain_mode_does(serve_once, fp8):
    """The emulated device keeps each rounding, so the integer roundings must not change a bit."""
    plain, exact = serve_once("tp1", "whole", False), serve_once("tp1", "whole", False, VLLM_BEAM_EXACT="1")
    accept(score(fp8, exact.alone, "w8a8"), "FP8 tp1, exact mode")
    assert [a.ids for a in exact.alone] == [a.ids for a in plain.alone]
    difference = served.mean_difference(exact.alone, plain.alone)
    print(f"exact against plain: mean |dlogprob| {difference:.2g}")
    assert difference == 0


def test_awkward_sizes_on_two_ranks_with_split_experts(checkpoint):
    """Nothing is a power of two: vocabulary 454, hidden 72, heads of 24, window 200 beside pages of 128, 24 experts."""
    path = checkpoint("awkward", 17, fp8=True)
    with testing.serve(
        path,
        "--enable-expert-parallel",
        timeout=PATIENCE,
        max_num_batched_tokens=200,
        tensor_parallel_size=2,
        max_model_len=640,
    ) as server:
        answers = ask(server, prompts((1, 199, 200, 201, 401)), COUNT)
    accept(score(path, answers, "w8a8", row_slices=2), "FP8 TP2 EP2, awkward sizes and hostile statistics")


def test_the_pair_measure_tells_another_checkpoint_from_noise(serve_once, checkpoint, fp8):
    """Control: the same prompts on weights of another seed."""
    plain = serve_once("tp1", "whole", False)
    with testing.serve(checkpoint("served", 41, fp8=True), timeout=PATIENCE, max_model_len=640) as server:
        strange = ask(server, prompts(LENGTHS), 2)
    short = [Answer(a.prompt, a.ids[:2], a.top[:2]) for a in plain.alone]
    difference = served.mean_difference(short, strange)
    floor = score(fp8, plain.alone, "w8a8").floor
    print(f"another seed: mean |dlogprob| {difference:.4f} (floor {floor:.4f})")
    assert difference > GAP_FACTOR * floor
