# SPDX-License-Identifier: Apache-2.0
"""Random schedules against the toy engine: what each request returns must not depend on what happened around it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from gates.cpu.runner.toy_engine import ToyEngine


class Fuzz:
    """Drives one engine with random arrivals, aborts, skips and forced preemptions.

    Attributes:
        events: how often each thing happened, so that a test can demand that it did.
        wrong: finished requests that returned something else than they must.
    """

    def __init__(self, engine: ToyEngine, seed: int, live: int = 16):
        self.engine = engine
        self.events: Counter[str] = Counter()
        self.wrong: dict[str, int] = {}
        self._random = random.Random(seed)
        self._live = live
        self._count = 0
        top = engine.vocabulary - 16
        self._prefixes = [[self._random.randrange(16, top) for _ in range(80)] for _ in range(4)]
        self._preempted: set[str] = set()

    def _arrive(self) -> None:
        draw = self._random
        prompt = list(draw.choice(self._prefixes)[: draw.randrange(0, 80)])
        prompt += [draw.randrange(16, self.engine.vocabulary - 16) for _ in range(draw.randrange(1, 60))]
        self._count += 1
        self.events["arrivals"] += 1
        self.engine.add(f"r{self._count}", prompt, draw.randrange(1, 60), structured=draw.random() < 0.3)

    def _disturb(self) -> None:
        draw, engine = self._random, self.engine
        scheduler = engine.scheduler
        chance = draw.random()
        if chance < 0.01 and engine.tracks:
            engine.abort(draw.choice(sorted(engine.tracks)))
            self.events["aborts"] += 1
        elif chance < 0.015 and scheduler.running:
            scheduler.reset_prefix_cache(reset_running_requests=True)
            self.events["forced preemptions"] += 1
        elif chance < 0.10 and scheduler.running:
            # Leave one running request out of the next step.
            draw.choice(scheduler.running).next_decode_eligible_step = scheduler.current_step + 2
            self.events["skips"] += 1

    def _observe(self) -> None:
        for request in self.engine.scheduler.waiting:
            fresh = request.request_id not in self._preempted and not request.num_computed_tokens
            if request.num_preemptions and fresh:
                self._preempted.add(request.request_id)
                self.events["preemptions"] += 1
        for request in self.engine.scheduler.running:
            if request.is_prefill_chunk:
                self.events["chunks"] += 1
            if request.request_id in self._preempted:
                self._preempted.discard(request.request_id)
                self.events["resumes"] += 1

    def _collect(self) -> None:
        engine = self.engine
        for name in [n for n in engine.tracks if n not in engine.scheduler.requests]:
            track = engine.tracks.pop(name)
            self.events["finished"] += 1
            self.events["tokens"] += len(track.got)
            expected = track.expected(engine.vocabulary, track.max_tokens)
            if track.got != expected:
                pairs = zip(track.got, expected, strict=False)
                self.wrong[name] = next((i for i, (a, b) in enumerate(pairs) if a != b), len(track.got))

    def run(self, steps: int) -> Fuzz:
        for _ in range(steps):
            if len(self.engine.tracks) < self._live and self._random.random() < 0.5:
                self._arrive()
            self._disturb()
            self.engine.step()
            self._observe()
            self._collect()
        return self


def hits_on_resume(engine: ToyEngine) -> Any:
    """Count prefix hits of resumed requests by wrapping the scheduler's cache lookup; returns the counter."""
    counter: Counter[str] = Counter()
    manager = engine.scheduler.kv_cache_manager
    lookup = manager.get_computed_blocks

    def counted(request: Any) -> Any:
        found = lookup(request)
        if request.num_preemptions and found[1]:
            counter["resumes on a prefix hit"] += 1
        return found

    manager.get_computed_blocks = counted
    return counter
