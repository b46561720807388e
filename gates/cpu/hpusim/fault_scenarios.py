# SPDX-License-Identifier: Apache-2.0
"""Runs inside an engine process: one batch under every fault model in turn, on one engine that was started clean.

The batch has a chunked prefill, so its later chunks attend to cached context through an explicit bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gates.hpusim import faults, memory, streams

PROMPTS = [[7 + i % 400 for i in range(300)], [11, 12, 13]]
SAMPLING = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "ignore_eos": True}
# name -> (model of the fault, its value, mistake put into the host code meanwhile)
SCENARIOS: dict[str, tuple[str | None, str, bool]] = {
    "clean": (None, "", False),
    "again": (None, "", False),
    "workspace nan": ("ATTENTION_WORKSPACE", "nan,limit=16K", False),
    "run ahead": ("RUN_AHEAD", "on", False),
    "copies": ("ASYNC_COPY", "on", False),
    "never wait": (None, "", True),
    "never wait, copies": ("ASYNC_COPY", "on", True),
    "junk": ("POISON", "kv,value=huge", False),
    "nan": ("POISON", "kv,value=nan", False),
    "round trip": ("ROUND_TRIP", "on", False),
    "recovered": (None, "", False),
    "workspace oom": ("ATTENTION_WORKSPACE", "oom,limit=16K", False),
}


@contextmanager
def never_wait() -> Iterator[None]:
    """A mistake that a device which copies at once forgives: nobody waits for the event of a copy."""
    before = streams.Event.synchronize
    streams.Event.synchronize = lambda self: None
    try:
        yield
    finally:
        streams.Event.synchronize = before


def serve(llm: Any) -> dict[str, Any]:
    """Tokens, log-probabilities (as text: NaN is not equal to itself) and the memory peak of one batch."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    memory.reset_peak_memory_stats()
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    before = memory.memory_allocated()
    outputs = llm.generate(prompts, SamplingParams(**SAMPLING), use_tqdm=False)
    choices = [output.outputs[0] for output in outputs]
    logprobs = [[repr(sorted((t, e.logprob) for t, e in step.items())) for step in c.logprobs or []] for c in choices]
    return {
        "tokens": [list(choice.token_ids) for choice in choices],
        "logprobs": logprobs,
        "peak": memory.max_memory_allocated() - before,
    }


def run(llm: Any) -> dict[str, Any]:
    """Every scenario's outcome; `error` when the engine raised. The last one leaves the engine broken."""
    results = {}
    for name, (model, value, mistake) in SCENARIOS.items():
        fault = faults.enabled(model, value) if model else nullcontext()
        with fault, never_wait() if mistake else nullcontext():
            try:
                results[name] = serve(llm)
            except Exception as error:
                results[name] = {"error": f"{type(error).__name__}: {error}"}
                if model == "ATTENTION_WORKSPACE":
                    break
    return results
