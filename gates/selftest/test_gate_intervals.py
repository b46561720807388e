# SPDX-License-Identifier: Apache-2.0
"""Intervals: what is resampled is what is independent, so that 95 % means about 95 %."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from gates.core import gate, reference, runner, stats
from gates.core.result import Verdict
from gates.device import copying, decode_vs_prefill, perplexity

GATES = gate.discover()


def _continuation(rng: random.Random, mean: float, tokens: int = 64) -> list[float]:
    """Gaps of one continuation: neighbouring tokens depend on each other (0.9), as they share their context."""
    state, out = rng.gauss(0, 1), []
    for _ in range(tokens):
        state = 0.9 * state + math.sqrt(1 - 0.81) * rng.gauss(0, 1)
        out.append(mean * math.exp(0.5 * state - 0.125))
    return out


def test_blocks_cover_the_truth_where_single_tokens_do_not() -> None:
    rng, trials, whole, single = random.Random(1), 80, 0, 0
    for _ in range(trials):
        rows = [_continuation(rng, 0.04) for _ in range(6)]
        low, high = stats.block_interval(rows)
        whole += low <= 0.04 <= high
        low, high = stats.bootstrap([v for row in rows for v in row], rounds=60)
        single += low <= 0.04 <= high
    assert whole / trials >= 0.88
    assert single / trials < 0.6, "the control: tokens taken for independent claim far too much"


def test_stretches_of_one_text_cover_as_well() -> None:
    rng, trials, whole = random.Random(2), 60, 0
    for _ in range(trials):
        low, high = stats.block_interval(stats.blocks(_continuation(rng, 0.04, 1024)))
        whole += low <= 0.04 <= high
    assert whole / trials >= 0.85


@pytest.mark.parametrize("groups", [2, 3, 4, 6, 12])
def test_few_groups_cover_as_many_do(groups: int) -> None:
    """The spread of whole continuations, sigma 0.5: resampled, two of them covered 43 %."""
    rng, trials, covered = random.Random(groups), 400, 0
    for _ in range(trials):
        rows = [[math.exp(rng.gauss(0, 0.5) - 0.125)] * 48 for _ in range(groups)]
        low, high = stats.block_interval(rows)
        covered += low <= 1 <= high
    assert covered / trials >= 0.88


def test_a_ratio_of_pairs_covers_where_its_parts_vary_together() -> None:
    rng, trials, covered, widths = random.Random(7), 300, 0, []
    for _ in range(trials):
        pairs = [(b * (1.2 + rng.gauss(0, 0.05)), b) for b in (math.exp(rng.gauss(4, 0.8)) for _ in range(20))]
        low, high = stats.ratio_interval(pairs)
        covered += low <= 1.2 <= high
        widths.append(high - low)
    assert covered / trials >= 0.88
    assert stats.mean(widths) < 0.1, "what both share is no spread of the ratio"


def test_student_points_against_the_tables() -> None:
    assert stats._student(1) == pytest.approx(12.7062, abs=0.001)
    assert stats._student(2) == pytest.approx(4.3027, abs=0.001)
    assert stats._student(3) == pytest.approx(3.1824, abs=0.02)
    assert stats._student(5) == pytest.approx(2.5706, abs=0.005)
    assert stats._student(10) == pytest.approx(2.2281, abs=0.001)
    assert stats._student(60) == pytest.approx(2.0003, abs=0.0005)


def test_one_group_has_no_interval_and_a_mean_is_within_its_own() -> None:
    assert stats.block_interval([[1.0, 2.0]]) == (None, None)
    rng = random.Random(3)
    for _ in range(50):
        rows = [[rng.expovariate(1) for _ in range(5)] for _ in range(rng.randrange(2, 6))]
        low, high = stats.block_interval(rows)
        assert low <= stats.mean([v for row in rows for v in row]) <= high


def test_shares_that_come_in_runs_are_worth_fewer_trials() -> None:
    runs = [[1.0] * 50, [0.0] * 50, [1.0] * 50, [1.0] * 50]
    mixed = [[1.0, 1.0, 1.0, 0.0] * 13 for _ in range(4)]
    narrow, wide = stats.block_share(mixed), stats.block_share(runs)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])
    assert wide[0] <= 0.75 <= wide[1]
    assert stats.block_share([[1.0] * 50] * 4)[0] < 1.0


def test_magnitudes() -> None:
    assert stats.magnitude(-0.2, 0.1) == (0.0, 0.2)
    assert stats.magnitude(-0.3, -0.1) == (0.1, 0.3)
    assert stats.magnitude(None, None) == (None, None)


def test_blocks_hold_every_value_once() -> None:
    values = [float(i) for i in range(1000)]
    cut = stats.blocks(values)
    assert [v for block in cut for v in block] == values
    assert max(map(len, cut)) == 64
    assert len(stats.blocks(values[:39])) >= 8


def test_decode_vs_prefill_gives_the_interval_of_its_worst_rung(healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rungs far below the gated one must not pull its interval down, as they did when all tokens were resampled."""
    ctx = healthy[0]
    rng = random.Random(4)
    monkeypatch.setattr(
        decode_vs_prefill, "gaps", lambda ctx, rung, seed: _continuation(rng, 0.04 if rung == 384 else 0.001)
    )
    more = dataclasses.replace(ctx, profile=dataclasses.replace(ctx.profile, samples=18))
    seen = runner.run_one(GATES["decode-vs-prefill"], more)
    assert seen.details["worst_rung"] == 384
    assert seen.measurement.low > 0.02
    assert seen.measurement.low < seen.measurement.value < seen.measurement.high
    assert seen.measurement.samples == 6 * 64


def test_copy_counts_cases(healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts of 64 tokens, one lost at its first: 128 of 192 tokens are three trials, not 192."""
    monkeypatch.setattr(copying, "_case", lambda ctx, rung, seed: (0 if rung == 384 else 64, 64))
    seen = runner.run_one(GATES["copy"], healthy[0])
    assert seen.verdict is Verdict.FAIL
    assert seen.measurement.value == pytest.approx(2 / 3)
    assert (seen.measurement.low, seen.measurement.high) == stats.wilson(2, 3)


def test_perplexity_gives_the_worst_passage_its_interval(healthy, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)

    def passage(name: str, shift: float) -> perplexity.Compared:
        differences = tuple(rng.gauss(shift, 0.05) for _ in range(512))
        return perplexity.Compared(name, differences, tuple(abs(d) for d in differences), (1.0,) * 512)

    seen = perplexity.Comparison(
        (passage("fair", 0.0), passage("foul", -0.05)), reference.Reference("c0ffee", "bf16", ())
    )
    monkeypatch.setattr(perplexity, "compare", lambda ctx: seen)
    result = runner.run_one(GATES["perplexity"], healthy[0])
    assert result.verdict is Verdict.FAIL
    assert result.details["worst_passage"] == "foul"
    assert 0.03 < result.measurement.low < result.measurement.value < result.measurement.high < 0.08
    assert "against the reference of checkpoint c0ffee (bf16)" in result.reason
