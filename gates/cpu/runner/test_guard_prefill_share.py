# SPDX-License-Identifier: Apache-2.0
"""Guard of the prefill-share patch: vLLM's scheduler under a virtual clock while a 250K prompt reads in."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

LONG = 250_000
CHUNK = 0.9


@pytest.fixture(scope="module")
def configs(llama):
    """`configs(asynchronous)`: a fresh configuration with room for the long prompt."""
    from gates.cpu.runner.toy_engine import vllm_config

    def make(asynchronous: bool):
        config = vllm_config(llama, async_scheduling=asynchronous, block_size=128, enable_prefix_caching=False)
        config.model_config.max_model_len = 262144
        config.scheduler_config.max_model_len = 262144
        config.scheduler_config.max_num_batched_tokens = 4096
        config.scheduler_config.max_num_scheduled_tokens = None
        config.scheduler_config.enable_chunked_prefill = True
        return config

    return make


def _simulate(
    configs,
    asynchronous: bool,
    share: float,
    *extra: tuple,
    until: float = 400.0,
    decodes: int = 4,
    policy: str = "fcfs",
    long_at: float = 5.0,
    decode_seconds: float = 0.09,
):
    from gates.cpu.runner.share_simulation import ShareSimulation

    simulation = ShareSimulation(configs(asynchronous), share, policy=policy, decode_seconds=decode_seconds)
    for i in range(decodes):
        simulation.add(0.0, f"decode{i}", 200, 200_000 if decodes else 1)
    simulation.add(long_at, "long", LONG, 4)
    for arrival in extra:
        simulation.add(*arrival)
    return simulation.run(until)


def _span(result) -> tuple[float, float]:
    times = [t for t, name, _ in result.chunks if name == "long"]
    return times[0] - CHUNK, times[-1]


def _check_share(configs, asynchronous: bool, share: float, decode_seconds: float) -> None:
    result = _simulate(configs, asynchronous, share, until=1500.0, decode_seconds=decode_seconds)
    start, end = _span(result)
    assert sum(c for _, n, c in result.chunks if n == "long") == LONG, "the prompt was read in"
    solo = 1 / decode_seconds
    for i in range(4):
        assert result.rate(f"decode{i}", start, end) >= (share - 0.01) * solo
    # The prompt is held back no more than its share asks: the time of a chunk is s / (1 - s) of decode time.
    due = CHUNK * share / (1 - share)
    times = [t for t, n, _ in result.chunks if n == "long"]
    stalls = [b - a - CHUNK for a, b in itertools.pairwise(times)]
    assert max(stalls) <= 2 * due, (max(stalls), due)
    assert end - start <= 1.1 * len(times) * (CHUNK + due)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_scheduler_is_wired_in(configs, settings, asynchronous: bool) -> None:
    settings()
    _check_share(configs, asynchronous, 0.75, 0.09)


@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_share_at_device_speed(configs, settings, asynchronous: bool, share: float) -> None:
    """Step times of the port pages: 30 ms a decode step, 0.9 s a chunk."""
    settings()
    _check_share(configs, asynchronous, share, 0.03)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_control_without_the_share(configs, settings, asynchronous: bool) -> None:
    settings()
    result = _simulate(configs, asynchronous, 1.0)
    start, end = _span(result)
    assert result.rate("decode0", start, end) < 0.12 / 0.09, "every step carries a chunk"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_short_prompts_do_not_wait_longer(configs, settings, asynchronous: bool, policy: str) -> None:
    settings()
    short = [(10.0 + 7.3 * i, f"short{i}", 2000, 2) for i in range(8)]
    late_long = (30.0, "second", 60_000, 2)
    held = _simulate(configs, asynchronous, 0.75, *short, late_long, until=600.0, policy=policy)
    free = _simulate(configs, asynchronous, 1.0, *short, late_long, until=600.0, policy=policy)
    ttft = lambda result: [result.first_token[n] - at for at, n, _, _ in short]  # noqa: E731
    assert all(h <= f + CHUNK for h, f in zip(ttft(held), ttft(free), strict=True)), (ttft(held), ttft(free))
    assert max(ttft(held)) <= 3 * CHUNK
    assert held.first_token["second"], "the second long prompt starves"
    assert held.first_token["long"], "the first long prompt starves"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_long_prompt_with_a_cached_beginning_is_short(configs, settings, asynchronous: bool, policy: str) -> None:
    """The next turn of a conversation: what is left to compute counts, and it is known only from the cache."""
    from gates.cpu.runner.share_simulation import ShareSimulation

    settings()
    config = configs(asynchronous)
    config.cache_config.enable_prefix_caching = True
    simulation = ShareSimulation(config, 0.75, policy=policy, decode_seconds=0.09)
    simulation.add(0.0, "turn1", 40_000, 2, text="conversation")
    for i in range(2):
        simulation.add(15.0, f"decode{i}", 200, 200_000)
    simulation.add(20.0, "long", LONG, 4)
    simulation.add(30.0, "turn2", 41_000, 2, text="conversation")
    result = simulation.run(60.0)
    assert sum(c for _, n, c in result.chunks if n == "turn2") <= 41_000 - 39_000
    assert result.first_token["turn2"] <= 30.0 + 3 * CHUNK
    assert "long" not in result.first_token, "it was still reading in"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_waits_when_nothing_decodes(configs, settings, asynchronous: bool) -> None:
    settings()
    result = _simulate(configs, asynchronous, 0.75, decodes=0, until=200.0)
    times = [t for t, _, _ in result.chunks]
    assert max(b - a for a, b in itertools.pairwise(times)) <= CHUNK + 1e-6


def _with_grammars(configs, asynchronous: bool, policy: str):
    """Simulation and result of long prompts with grammars; from 35 s on they read in beside four decodes."""
    from gates.cpu.runner.share_simulation import ShareSimulation

    config = configs(asynchronous)
    config.scheduler_config.max_num_seqs = 32
    simulation = ShareSimulation(config, 0.75, policy=policy, decode_seconds=0.09)
    for i in range(4):
        simulation.add(0.0, f"decode{i}", 200, 200_000)
    # Two wait for half a minute in which nothing but decodes runs, then both start with six more behind them.
    for i in range(8):
        at = 5.0 if i < 2 else 40.0 + 0.5 * i
        simulation.add(at, f"schema{i}", 12_000, 2, grammar_at=max(35.0, at + 0.2))
    simulation.add(50.0, "short", 1000, 2, grammar_at=50.3)
    simulation.add(50.0, "broken", 12_000, 2, grammar_at=50.3, grammar_error=ValueError("no such schema"))
    return simulation, simulation.run(170.0)


def _worst(result, start: int, end: int) -> float:
    """Lowest rate of a decode in ten seconds: a chunk's debt is paid later, so a long mean hides a burst of chunks."""
    return min(result.rate("decode0", t, t + 10) for t in range(start, end - 10))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_prompts_that_wait_for_a_grammar(configs, settings, asynchronous: bool, policy: str) -> None:
    """They start from another queue than the rest: held while others owe, never starved, no cost while they wait."""
    settings()
    simulation, result = _with_grammars(configs, asynchronous, policy)
    solo = 1 / 0.09
    assert result.rate("decode0", 6.0, 34.0) >= 0.99 * solo, "prompts without a grammar cost nothing"
    starts = [t - CHUNK for t, name, _ in result.chunks if name.startswith("schema")]
    assert min(starts) >= 34.0
    read = {n: sum(c for _, name, c in result.chunks if name == n) for n in (f"schema{i}" for i in range(8))}
    assert set(read.values()) == {12_000}, "every prompt was read in"
    assert result.rate("decode0", starts[0], starts[0] + 60) >= 0.73 * solo
    assert _worst(result, 35, 100) >= 0.6 * solo, "the others' first chunks waited too"
    assert result.first_token["short"] <= 50.3 + 3 * CHUNK
    assert "broken" not in simulation.scheduler.requests, "its client hears of the error"


def test_control_grammar_queue_left_alone(configs, settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_gaudi.runtime import prefill_share

    settings()
    monkeypatch.setattr(prefill_share, "_may_start", lambda request: request.structured_output_request is None)
    _, result = _with_grammars(configs, False, "fcfs")
    assert _worst(result, 35, 100) < 0.5 / 0.09, "six first chunks in a row, and none waited"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pause_between_requests(configs, settings, asynchronous: bool) -> None:
    """The engine asks for no step while there is nothing to do: that time is no decode step's."""
    settings()
    before, beside = (0.0, "before", 200, 20), (100.0, "beside", 200, 200_000)
    result = _simulate(configs, asynchronous, 0.75, before, beside, decodes=0, long_at=101.0, until=140.0)
    assert len(result.decode_times["before"]) == 20
    assert result.rate("beside", 103.0, 139.0) >= 0.73 / 0.09


def test_held_prompts_keep_their_place() -> None:
    from vllm.v1.core.sched.request_queue import FCFSRequestQueue

    from vllm_gaudi.runtime.prefill_share import _Policy

    class Waiting(SimpleNamespace):
        __hash__ = object.__hash__

    make = lambda name, tokens: Waiting(  # noqa: E731
        request_id=name,
        num_tokens=tokens,
        num_computed_tokens=0,
        is_prefill_chunk=False,
        structured_output_request=None,
    )
    queue = FCFSRequestQueue([make("a", 10), make("b", 50_000), make("c", 10), make("d", 50_000)])
    scheduler = SimpleNamespace(
        waiting=queue,
        skipped_waiting=FCFSRequestQueue(),
        running=[make("x", 5)],
        current_step=3,
        requests={},
        kv_cache_manager=SimpleNamespace(enable_caching=False),
    )
    policy = _Policy(scheduler, 0.75)
    policy.cycle.debt = 1.0
    policy.before()
    assert [r.request_id for r in queue] == ["a", "c"]
    queue.pop_request()
    queue.prepend_request(make("preempted", 20))
    policy.after(SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={}))
    assert [r.request_id for r in queue] == ["preempted", "b", "c", "d"]
