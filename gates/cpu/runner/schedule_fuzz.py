# SPDX-License-Identifier: Apache-2.0
"""Random schedules against the toy engine: what each request returns must not depend on what happened around it.

Tokens, and log-probabilities of the prompt where a request asks for them.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from gates.cpu.runner.sampling_rules import Rule, rules
from gates.cpu.runner.toy_engine import ToyEngine, Track


class Fuzz:
    """Drives one engine with random arrivals, aborts, skips and forced preemptions.

    Args:
        mixed: every request draws its own sampling settings, one in three asks for its prompt to be scored, and
            some arrive several times at once, as the choices of one call do. A stop string ends a request as an
            abort does: it is found outside the engine core.

    Attributes:
        events: how often each thing happened, so that a test can demand that it did.
        wrong: finished requests that returned something else than they must, and what is wrong.
    """

    def __init__(self, engine: ToyEngine, seed: int, live: int = 16, mixed: bool = False):
        self.engine = engine
        self.events: Counter[str] = Counter()
        self.wrong: dict[str, str] = {}
        self._random = random.Random(seed)
        self._live = live
        self._count = 0
        top = engine.vocabulary - 16
        self._prefixes = [[self._random.randrange(16, top) for _ in range(80)] for _ in range(4)]
        self._preempted: set[str] = set()
        self._ever_preempted: set[str] = set()
        self._rules = rules(engine.vocabulary) if mixed else []

    def _arrive(self) -> None:
        draw = self._random
        prompt = list(draw.choice(self._prefixes)[: draw.randrange(0, 80)])
        prompt += [draw.randrange(16, self.engine.vocabulary - 16) for _ in range(draw.randrange(1, 60))]
        max_tokens, structured = draw.randrange(1, 60), draw.random() < 0.3
        if not self._rules:
            self._add(prompt, max_tokens, structured)
            return
        rule = draw.choice(self._rules)
        max_tokens = max(max_tokens, rule.sampling.get("min_tokens", 0))
        sampling = {"prompt_logprobs": draw.choice((0, 1, 3))} if draw.random() < 0.33 else {}
        copies = draw.choice((1, 1, 1, 3))
        if sampling and draw.random() < 0.3:
            # By default a scored prompt takes nothing from the prefix cache. One that nobody else has may: after a
            # preemption it finds its own blocks there.
            prompt = [draw.randrange(16, self.engine.vocabulary - 16) for _ in range(draw.randrange(40, 140))]
            sampling["skip_reading_prefix_cache"], copies = False, 1
        for _ in range(copies):
            self._add(prompt, max_tokens, structured and rule.with_grammar, rule, **sampling)
            self.events[rule.name] += 1

    def _add(
        self, prompt: list[int], max_tokens: int, structured: bool, rule: Rule | None = None, **sampling: Any
    ) -> None:
        self._count += 1
        self.events["arrivals"] += 1
        self.engine.add(f"r{self._count}", prompt, max_tokens, structured, rule, **sampling)

    def _disturb(self) -> None:
        draw, engine = self._random, self.engine
        scheduler = engine.scheduler
        # A prompt that is being scored is there for a step or two: something happens to it more often.
        scored = [r for r in scheduler.running if self._asks(r) and not r.num_output_tokens]
        chance = draw.random() * (0.2 if scored else 1.0)
        if chance < 0.01 and engine.tracks:
            engine.abort(draw.choice(sorted(engine.tracks)))
            self.events["aborts"] += 1
        elif chance < 0.015 and scheduler.running:
            self._ever_preempted.update(r.request_id for r in scheduler.running)
            self.events["scored prompts reset"] += sum(self._half_scored(r) for r in scheduler.running)
            self.events["scores discarded"] += sum(r.num_output_placeholders > 0 for r in scored)
            scheduler.reset_prefix_cache(reset_running_requests=True)
            self.events["forced preemptions"] += 1
        elif chance < 0.10 and scheduler.running:
            # Leave one running request out of the next step.
            left_out = draw.choice(scored or scheduler.running)
            left_out.next_decode_eligible_step = scheduler.current_step + 2
            self.events["skips"] += 1
            self.events["scored prompts left out"] += self._half_scored(left_out)

    def _asks(self, request: Any) -> bool:
        """Whether a request asks for scores of its prompt."""
        return request.sampling_params.prompt_logprobs is not None

    def _half_scored(self, request: Any) -> bool:
        """Whether part of a prompt that asks for scores has been read in."""
        return self._asks(request) and 0 < request.num_computed_tokens < request.num_prompt_tokens

    def _observe(self) -> None:
        for request in self.engine.scheduler.waiting:
            fresh = request.request_id not in self._preempted and not request.num_computed_tokens
            if request.num_preemptions:
                self._ever_preempted.add(request.request_id)
            if request.num_preemptions and fresh:
                self._preempted.add(request.request_id)
                self.events["preemptions"] += 1
                self.events["scored prompts preempted"] += self._asks(request) and not request.num_output_tokens
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
            if wrong := self._wrong_tokens(name, track) or track.wrong_score(engine.vocabulary):
                self.wrong[name] = wrong

    def _wrong_tokens(self, name: str, track: Track) -> str | None:
        if track.rule and not track.rule.reproducible and name in self._ever_preempted:
            return None
        expected = track.expected(self.engine.vocabulary, track.max_tokens)
        if track.got == expected:
            return None
        pairs = zip(track.got, expected, strict=False)
        return f"token {next((i for i, (a, b) in enumerate(pairs) if a != b), len(track.got))}"

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
