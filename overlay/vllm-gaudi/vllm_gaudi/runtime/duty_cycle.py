# SPDX-License-Identifier: Apache-2.0
"""What chunks of long prompts owe to running decodes, by the wall clock.

A step with a long chunk adds what it took beyond a decode step to a debt, decode steps pay it off at (1 - s) / s of
their time, and long prompts wait while debt remains. Over a cycle the decodes then run at the share s of their solo
speed; a chunk of duration T is followed by at most T * s / (1 - s) of decode-only steps, so the prompt cannot starve.

Step times change with batch, context and model, so they are estimated from the last few steps. A single step may take
a thousand times longer than the rest (a graph is compiled), so estimates are medians, an estimate that the step at
hand contradicts is not used, and one that is old is renewed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

_SAMPLES = 5  # steps an estimate is the median of
_OUTLIER = 4.0  # a step that took more than this many times the expected is a hiccup (compilation), not a cost
_STALE = 8  # steps with a long chunk in a row, after which one goes without, to renew the decode estimate
_FIRST = 100  # decode steps that the first chunk may owe until a second one tells what it cost without a compilation


@dataclass
class _Step:
    """What a scheduled step computes: whether rows decode, and tokens of long prompts."""

    key: Any
    began: float
    decodes: bool
    long_tokens: int
    other_tokens: int
    charged: float


class _Estimate:
    """Seconds of something, from the last few times it was seen; None if it never was."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._samples: deque[float] = deque(maxlen=_SAMPLES)

    @property
    def count(self) -> int:
        """How many of the last few times there are."""
        return len(self._samples)

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        # The lower of two middle ones: a first step is compiled more often than it is too fast.
        self.value = median_low(self._samples)


class DutyCycle:
    """Debt of long prompts towards running decodes.

    Args:
        share: share of their solo speed that decodes keep, below 1.
        clock: seconds, monotonic.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic):
        self.share = share
        self.debt = 0.0
        self._decode = _Estimate()
        self._token = _Estimate()  # of a long chunk, per token
        self._unseen = 0  # steps with a long chunk beside decodes since one had none
        self._clock = clock
        self._pending: deque[_Step] = deque()
        self._ended = float("-inf")  # when the newest step that has did

    @property
    def decode_time(self) -> float | None:
        """Seconds of a step that only decodes."""
        return self._decode.value

    @property
    def token_time(self) -> float | None:
        """Seconds a token of a long chunk adds to a step."""
        return self._token.value

    @property
    def owes(self) -> bool:
        """Whether long prompts wait. Steps still running count at their estimate, an unknown one as a full debt."""
        return self.debt + sum(step.charged for step in self._pending) > 0 or self._unseen >= _STALE

    @property
    def running(self) -> bool:
        """Whether a scheduled step has not ended."""
        return bool(self._pending)

    def idle(self) -> None:
        """Nothing is left to do: time passes, nobody owes."""
        self._pending.clear()
        self.debt = 0.0
        self._unseen = 0

    def scheduled(self, key: Any, decodes: bool, long_tokens: int, other_tokens: int) -> None:
        """A step was scheduled; `key` is the object that `ended` will know it by."""
        charged = 0.0
        if decodes and long_tokens:
            charged = float("inf") if self.token_time is None else self.token_time * long_tokens
            self._unseen += 1
        elif not long_tokens:
            self._unseen = 0  # also where short prompts keep decodes from a step of their own: nobody waits for that
        self._pending.append(_Step(key, self._clock(), decodes, long_tokens, other_tokens, charged))

    def ended(self, key: Any) -> None:
        """A step has ended; it took the time since the one before did, or since it was scheduled if that is later."""
        if not any(step.key is key for step in self._pending):
            return
        while (step := self._pending.popleft()).key is not key:
            pass
        now = self._clock()
        self._account(step, now - max(step.began, self._ended))
        self._ended = now

    def _account(self, step: _Step, took: float) -> None:
        if step.long_tokens:
            self._charge(step, took)
        elif step.decodes:
            self._pay(step, took)

    def _pay(self, step: _Step, took: float) -> None:
        rate = (1 - self.share) / self.share
        steady = took if self.decode_time is None else min(took, _OUTLIER * self.decode_time)
        if not step.other_tokens:
            self._decode.add(took)
        paid = rate * (took if step.other_tokens else steady)
        # Debt below zero is kept for one step at most: it only evens out that steps are whole.
        self.debt = max(self.debt - paid, -rate * steady)
        if self._token.count == 1 and self.decode_time is not None:
            self.debt = min(self.debt, _FIRST * self.decode_time)

    def _charge(self, step: _Step, took: float) -> None:
        part = step.long_tokens / (step.long_tokens + step.other_tokens)
        expected = None if self.token_time is None else self.token_time * step.long_tokens
        decode = (self.decode_time or 0.0) if step.decodes else 0.0
        chunk = (took - decode) * part
        if chunk <= (expected or 0.0) / _OUTLIER:
            # Less than nothing, or next to nothing: the decode estimate is spoiled, or of a larger batch.
            decode = 0.0
            chunk = took * part if expected is None else min(took * part, expected)
            self.debt = max(self.debt, 0.0)  # what such a step paid in advance is not worth more
        self._token.add(chunk / step.long_tokens)
        if expected is not None:
            chunk = min(chunk, _OUTLIER * expected)
        if step.decodes:
            self.debt += chunk - decode * (1 - self.share) / self.share
