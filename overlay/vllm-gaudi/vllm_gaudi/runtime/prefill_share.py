# SPDX-License-Identifier: Apache-2.0
"""A share of the machine for running decodes while a long prompt reads in.

A chunk of a long prompt takes tens of decode steps, so a decode that shares every step with one runs at a few
percent of its speed. Here long prompts wait while `duty_cycle` says that they owe time to decodes. Short prompts are
never held back, and nothing waits when nothing decodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vllm_gaudi.runtime import gates, preempted_blocks, settings
from vllm_gaudi.runtime.duty_cycle import DutyCycle


def _may_start(request: Any) -> bool:
    """Whether the scheduler would start a waiting request: one that waits for its grammar must keep being asked.

    A grammar that failed to compile must reach the scheduler too, or its client would wait for the error.
    """
    grammar = request.structured_output_request
    return grammar is None or (grammar.is_grammar_ready and not isinstance(grammar.grammar, Exception))


class _Held:
    """Requests taken out of one queue for one step."""

    def __init__(self, queue: Any, requests: list[Any]):
        self._queue = queue
        self._requests = requests
        self._order = list(queue)
        queue.remove_requests(requests)

    def restore(self) -> None:
        """Put them back where they stood; what came into the queue meanwhile (preempted, blocked) stays in front."""
        known = set(map(id, self._order))
        still = {id(r) for r in self._queue} | {id(r) for r in self._requests}
        order = [r for r in self._queue if id(r) not in known] + [r for r in self._order if id(r) in still]
        self._queue.remove_requests(list(self._queue))
        for request in order:
            self._queue.add_request(request)


class _Policy:
    """Holds long prompts of one scheduler back while they owe."""

    def __init__(self, scheduler: Any, share: float, clock: Callable[[], float] = time.monotonic):
        self.cycle = DutyCycle(share, clock)
        self.threshold = settings.current().prefill_share_tokens
        self._scheduler = scheduler
        self._held: list[_Held] = []

    def is_long(self, request: Any) -> bool:
        """Whether more than the threshold is left to compute."""
        left = request.num_tokens - request.num_computed_tokens
        if left > self.threshold and not request.num_computed_tokens:
            left -= self._cached(request)
        return left > self.threshold

    def _cached(self, request: Any) -> int:
        """Tokens of a request that has not started which the prefix cache holds; the scheduler learns it at its start.

        A lookup ends at the first block that is not there, and a request that is mostly there is not held again.
        """
        manager = self._scheduler.kv_cache_manager
        if not manager.enable_caching or request.skip_reading_prefix_cache:
            return 0
        # Not through the manager, whose statistics count every question as a request.
        return manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1]

    def before(self) -> None:
        scheduler = self._scheduler
        if not scheduler.running and not self.cycle.running:
            self.cycle.idle()
        decodes = any(not r.is_prefill_chunk for r in scheduler.running)
        if not decodes or not self.cycle.owes:
            return
        for request in scheduler.running:
            if request.is_prefill_chunk and self._is_long_prompt(request):
                # The scheduler skips a request until this step; the counter advances once per call.
                request.next_decode_eligible_step = scheduler.current_step + 2
        # A prompt with a grammar waits in a queue of its own and starts from there once the grammar is compiled.
        for queue in (scheduler.waiting, scheduler.skipped_waiting):
            if held := [r for r in queue if self.is_long(r) and _may_start(r)]:
                self._held.append(_Held(queue, held))

    def _is_long_prompt(self, request: Any) -> bool:
        # A long prompt stays long to its end: its last chunks are as slow as its first.
        return request.num_tokens > self.threshold and getattr(request, "_frontier_long", False)

    def after(self, output: Any) -> None:
        scheduler = self._scheduler
        while self._held:
            self._held.pop().restore()
        if not output.total_num_scheduled_tokens:
            return
        decodes, long_tokens, other = False, 0, 0
        for req_id, count in output.num_scheduled_tokens.items():
            request = scheduler.requests[req_id]
            # Computed tokens were advanced by the count already.
            if count == 1 and request.num_computed_tokens > request.num_prompt_tokens:
                decodes = True
            elif self._mark(request, count):
                long_tokens += count
            else:
                other += count
        self.cycle.scheduled(output, decodes, long_tokens, other)

    def _mark(self, request: Any, count: int) -> bool:
        if request.num_tokens - (request.num_computed_tokens - count) > self.threshold:
            request._frontier_long = True
        return getattr(request, "_frontier_long", False)


def _policy(scheduler: Any) -> _Policy | None:
    policy = scheduler.__dict__.get("_frontier_prefill_share", False)
    if policy is False:
        share = gates.prefill_share(scheduler.vllm_config)
        policy = _Policy(scheduler, share) if share < 1 else None
        scheduler.__dict__["_frontier_prefill_share"] = policy
    return policy


def before_schedule(scheduler: Any) -> None:
    """Hold long prompts back for this step if they owe; call before the scheduler's own `schedule`."""
    preempted_blocks.install(scheduler)
    policy = _policy(scheduler)
    if policy is not None:
        policy.before()


def after_schedule(scheduler: Any, output: Any) -> None:
    """Put held prompts back and note what the step computes; call with the scheduler's output."""
    policy = _policy(scheduler)
    if policy is not None:
        policy.after(output)


def step_ended(scheduler: Any, output: Any) -> None:
    """Note that a step is done; call with the scheduler's output for it, before the scheduler takes its result."""
    policy = _policy(scheduler)
    if policy is not None:
        policy.cycle.ended(output)
