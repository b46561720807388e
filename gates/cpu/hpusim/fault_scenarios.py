# SPDX-License-Identifier: Apache-2.0
"""Runs inside an engine process: one batch under every fault model in turn, on one engine that was started clean.

The batch has a chunked prefill, so its later chunks attend to cached context through an explicit bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gates.hpusim import faults, memory, streams
from gates.hpusim.faults import kv_blocks

PROMPTS = [[7 + i % 400 for i in range(300)], [11, 12, 13]]
SAMPLING = {"temperature": 0, "max_tokens": 6, "logprobs": 2, "ignore_eos": True}
# name -> (model of the fault, its value, mistake put into the host code meanwhile)
SCENARIOS: dict[str, tuple[str | None, str, str | None]] = {
    "clean": (None, "", None),
    "again": (None, "", None),
    "workspace nan": ("ATTENTION_WORKSPACE", "nan,limit=16K", None),
    "run ahead": ("RUN_AHEAD", "on", None),
    "copies": ("ASYNC_COPY", "on", None),
    "never wait": (None, "", "never_wait"),
    "never wait, copies": ("ASYNC_COPY", "on", "never_wait"),
    "junk": ("POISON", "kv,value=huge", None),
    "times zero": (None, "", "times_zero"),
    "times zero, nan": ("POISON", "kv,value=nan", "times_zero"),
    "fresh junk": ("POISON", "fresh,value=nan", None),
    "reads fresh": (None, "", "reads_fresh"),
    "reads fresh, poison": ("POISON", "fresh,value=huge", "reads_fresh"),
    "rounded": (None, "", "rounded_logits"),
    "rounded, round trip": ("ROUND_TRIP", "on", "rounded_logits"),
    "recovered": (None, "", None),
    "workspace oom": ("ATTENTION_WORKSPACE", "oom,limit=16K", None),
}
# What a lost rank does -> what the engine's log must say, None for an answer. Shown with two ranks, one engine each.
LOST_RANK: dict[str | None, str | None] = {
    None: None,
    "die,rank=1,after=20": r"exit code 1[\s\S]*in all_reduce[\s\S]*Connection (reset|closed) by peer",
    "hang,rank=1,after=20": r"exit code 1[\s\S]*RPC call to \w+ timed out",
    "slow,rank=1,after=20,seconds=90": r"exit code 1[\s\S]*RPC call to \w+ timed out",
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


@contextmanager
def rounded_logits() -> Iterator[None]:
    """Not a mistake on other devices: logits are scaled in fp32 and rounded to bf16, as a reference may do."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    before = LogitsProcessor.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = before(self, *args, **kwargs)
        return None if logits is None else (logits.float() * 0.937).to(torch.bfloat16).float()

    LogitsProcessor.forward = forward
    try:
        yield
    finally:
        LogitsProcessor.forward = before


@contextmanager
def times_zero() -> Iterator[None]:
    """A mistake that memory of zeros forgives: the null block is multiplied by zero instead of left out."""
    from vllm_gaudi.extension.utils import VLLMKVCache

    before = VLLMKVCache.fetch_from_cache

    def fetch_from_cache(self: Any, cache: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        return before(self, cache, blocks, *args, **kwargs) + 0 * cache[:1]

    VLLMKVCache.fetch_from_cache = fetch_from_cache
    try:
        yield
    finally:
        VLLMKVCache.fetch_from_cache = before


@contextmanager
def reads_fresh() -> Iterator[None]:
    """A mistake that a new page of zeros forgives: memory nobody wrote is added to every other logit.

    64 MiB is more than malloc ever keeps for reuse, so without the fault the kernel hands out zeros each time.
    """
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    before = LogitsProcessor.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits = before(self, *args, **kwargs)
        if logits is None:
            return None
        bias = torch.empty(1 << 24, device="hpu")[: logits.shape[-1] // 2]
        return logits + torch.nn.functional.pad(bias, (0, logits.shape[-1] - bias.shape[0]))

    LogitsProcessor.forward = forward
    try:
        yield
    finally:
        LogitsProcessor.forward = before


MISTAKES = {
    None: nullcontext, "times_zero": times_zero, "never_wait": never_wait, "rounded_logits": rounded_logits,
    "reads_fresh": reads_fresh,
}  # fmt: skip


def serve(llm: Any) -> dict[str, Any]:
    """Tokens, log-probabilities (as text: NaN is not equal to itself) and the memory peak of one batch."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    memory.reset_peak_memory_stats()
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    before, filled = memory.memory_allocated(), kv_blocks.filled
    outputs = llm.generate(prompts, SamplingParams(**SAMPLING), use_tqdm=False)
    choices = [output.outputs[0] for output in outputs]
    logprobs = [[repr(sorted((t, e.logprob) for t, e in step.items())) for step in c.logprobs or []] for c in choices]
    return {
        "tokens": [list(choice.token_ids) for choice in choices],
        "logprobs": logprobs,
        "peak": memory.max_memory_allocated() - before,
        "junk_blocks": kv_blocks.filled - filled,
    }


def run(llm: Any) -> dict[str, Any]:
    """Every scenario's outcome; `error` when the engine raised. The last one leaves the engine broken."""
    results = {}
    for name, (model, value, mistake) in SCENARIOS.items():
        fault = faults.enabled(model, value) if model else nullcontext()
        with fault, MISTAKES[mistake]():
            try:
                results[name] = serve(llm)
            except Exception as error:
                results[name] = {"error": f"{type(error).__name__}: {error}"}
                if model == "ATTENTION_WORKSPACE":
                    break
    return results
