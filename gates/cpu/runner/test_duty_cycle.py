# SPDX-License-Identifier: Apache-2.0
"""The duty cycle of the prefill share alone, under a virtual clock: what a slow step does to the share.

No scheduler: a long prompt's chunk runs whenever nothing is owed, beside the decodes, else they run alone.
"""

from __future__ import annotations

import itertools
import random
from collections import deque

import pytest

from vllm_gaudi.runtime.duty_cycle import DutyCycle

DECODE, CHUNK, TOKENS = 0.03, 0.3, 4096


class Machine:
    """Runs steps in order; with a lag the next is scheduled while one is still running."""

    def __init__(self, lag: int, share: float = 0.75):
        self.cycle = DutyCycle(share, clock=lambda: self.now)
        self.now = 0.0
        self._lag = lag
        self._free = 0.0
        self._running: deque[tuple[float, object]] = deque()

    def step(self, seconds: float, long_tokens: int = 0, short_tokens: int = 0, decodes: bool = True) -> None:
        self._free = max(self._free, self.now) + seconds
        key = object()
        self.cycle.scheduled(key, decodes, long_tokens, short_tokens)
        self._running.append((self._free, key))
        if len(self._running) > self._lag:
            self.wait()

    def wait(self) -> None:
        """For the oldest step that runs."""
        end, key = self._running.popleft()
        self.now = max(self.now, end)
        self.cycle.ended(key)

    def decode(self, steps: int, seconds: float = DECODE) -> None:
        for _ in range(steps):
            self.step(seconds)

    def prompt(self, chunks: int = 20, decode: float = DECODE, chunk: float = CHUNK, **hiccups: float) -> float:
        """Read a long prompt in; returns the share of their solo speed the decodes kept.

        Args:
            hiccups: `chance` that a step of either kind takes `extra` seconds more, which do not count.
        """
        draw = random.Random(1)
        start, steps, left, lost = self.now, 0, chunks, 0.0
        while left:
            extra = hiccups["extra"] if draw.random() < hiccups.get("chance", 0.0) else 0.0
            lost += extra
            steps += 1
            if self.cycle.owes:
                self.step(decode + extra, 0)
            else:
                left -= 1
                self.step(decode + chunk + extra, TOKENS)
        return steps * decode / (self.now - start - lost)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_share_is_kept_and_no_more(lag: int, share: float) -> None:
    machine = Machine(lag, share)
    machine.decode(20)
    assert machine.prompt() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("slow", "seconds"), [(1, 1), (1, 60), (2, 60), (5, 0.28), (5, 60)])
def test_slow_decodes_before_a_prompt(lag: int, seconds: float, slow: int) -> None:
    machine = Machine(lag)
    machine.decode(50)
    machine.prompt()
    machine.decode(50)
    machine.decode(slow, seconds)
    machine.decode(lag)  # a step that is still running counts towards the prompt's time
    assert machine.prompt() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("lag", [0, 1])
def test_slow_short_prompt_before_a_long_one(lag: int) -> None:
    """What it took is no payment in advance."""
    machine = Machine(lag)
    machine.decode(50)
    machine.prompt()
    machine.decode(50)
    machine.step(60.0, short_tokens=100)
    machine.decode(lag)
    assert machine.prompt() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("first", [0.3, 30])
@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize("compiled", [1, 5])
def test_first_steps_of_a_process(lag: int, first: float, warm: int, compiled: int) -> None:
    """They are compiled; the long prompts after them, the first included, find an estimate that is wrong."""
    machine = Machine(lag)
    machine.decode(compiled, first)
    machine.decode(warm + lag)
    found = []
    for _ in range(2):
        found.append(machine.prompt(40))
        machine.decode(20)
    assert found[0] > 0.45  # until three steps decoded alone, at worst after every eighth chunk
    assert found[1] == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("lag", [0, 1])
def test_slow_steps_while_a_prompt_reads_in(lag: int) -> None:
    """One in twenty takes five seconds more."""
    machine = Machine(lag)
    machine.decode(20)
    machine.prompt(3)
    assert machine.prompt(100, chance=0.05, extra=5.0) > 0.7


def test_slow_chunk_does_not_become_debt() -> None:
    """A step that took a hundred times longer (a compilation) must not stall the prompt for minutes."""
    machine = Machine(0)
    machine.step(DECODE)
    machine.step(DECODE + CHUNK, TOKENS)
    machine.step(90.0, TOKENS)
    waited = 0
    while machine.cycle.owes:
        waited += 1
        machine.step(DECODE)
    assert waited * DECODE <= 2 * 4 * CHUNK * 3


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("warm", [0, 20])
def test_first_chunk_of_a_process_is_compiled(lag: int, warm: int) -> None:
    """It took a minute: the prompt does not wait three for the next one."""
    machine = Machine(lag)
    machine.decode(warm)
    machine.step(DECODE + 60, TOKENS)
    machine.decode(lag)
    start = machine.now
    while machine.cycle.owes:
        machine.decode(1)
    assert machine.now - start < 15
    assert machine.prompt() == pytest.approx(0.75, abs=0.06)


@pytest.mark.parametrize("lag", [0, 1])
def test_short_prompts_without_end_do_not_starve_a_long_one(lag: int) -> None:
    """No step ever decodes alone; the long prompt still gets the time the decodes leave it."""
    machine = Machine(lag)
    machine.decode(20)
    chunks = []
    for _ in range(1000):
        if machine.cycle.owes:
            machine.step(DECODE + 0.02, short_tokens=200)
        else:
            machine.step(DECODE + CHUNK + 0.02, TOKENS, 200)
            chunks.append(machine.now)
    assert max(b - a for a, b in itertools.pairwise([*chunks, machine.now])) < 2 * 3 * CHUNK


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("before", "after"), [((0.03, 0.3), (0.1, 0.3)), ((0.1, 0.3), (0.03, 0.3)), ((0.03, 0.1), (0.03, 1))]
)
def test_steps_whose_cost_changes_for_good(lag: int, before: tuple, after: tuple) -> None:
    """Another batch, another context: the estimates follow in either direction."""
    machine = Machine(lag)
    machine.decode(20, before[0])
    machine.prompt(20, *before)
    machine.prompt(10, *after)
    assert machine.prompt(40, *after) == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("lag", [0, 1])
def test_chunks_that_cost_little_hardly_wait(lag: int) -> None:
    """One of a tenth of a decode step leaves decodes their share by itself; one step in nine renews the estimate."""
    machine = Machine(lag)
    machine.decode(20, 0.3)
    start = machine.now
    machine.prompt(80, 0.3, 0.03)
    assert machine.now - start < 1.15 * 80 * 0.33


def test_chunk_beside_the_last_token_of_the_only_decode() -> None:
    """Under async scheduling the next call schedules nothing, as the prompt waits for a decode that has ended."""
    machine = Machine(1)
    machine.decode(50)
    machine.step(DECODE + CHUNK, TOKENS)
    assert machine.cycle.owes
    machine.wait()
    assert machine.cycle.token_time == pytest.approx(CHUNK / TOKENS)
    for _ in range(8):
        machine.step(CHUNK, TOKENS, decodes=False)
    assert machine.cycle.token_time == pytest.approx(CHUNK / TOKENS)
    machine.decode(50)
    assert machine.prompt() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("lag", [0, 1])
def test_pause_is_nobodys_time(lag: int) -> None:
    machine = Machine(lag)
    for _ in range(4):
        machine.decode(1 + lag)
        while machine.cycle.running:
            machine.wait()
        machine.now += 600
    assert machine.cycle.decode_time == pytest.approx(DECODE)
    machine.cycle.ended(object())
    machine.decode(1 + lag)
    assert machine.prompt() == pytest.approx(0.75, abs=0.03)
