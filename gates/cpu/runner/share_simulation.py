# SPDX-License-Identifier: Apache-2.0
"""vLLM's real scheduler against a device that is only a clock.

A step takes the time of its decode batch plus the time of its prefill tokens. The engine's queue is modelled as
it is: without async scheduling a step is scheduled when the previous one has ended, with it one step earlier.
"""

from __future__ import annotations

import zlib
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

TOKEN = 40


@dataclass
class Result:
    """Virtual times in seconds."""

    decode_times: dict[str, list[float]] = field(default_factory=dict)
    chunks: list[tuple[float, str, int]] = field(default_factory=list)  # end of step, request, tokens
    first_token: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def rate(self, name: str, start: float, end: float) -> float:
        """Tokens per second of a request between two times."""
        return sum(start <= t < end for t in self.decode_times.get(name, ())) / (end - start)


class ShareSimulation:
    """One scheduler, a virtual clock and a cost model.

    Args:
        chunk_seconds: time of `budget` prefill tokens.
        decode_seconds: time of a decode batch.
    """

    def __init__(
        self,
        config: Any,
        share: float,
        budget: int = 4096,
        chunk_seconds: float = 0.9,
        decode_seconds: float = 0.03,
        policy: str = "fcfs",
    ):
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from vllm_gaudi.runtime import prefill_share
        from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler

        self.now = 0.0
        self.result = Result()
        self._token_seconds, self._decode_seconds = chunk_seconds / budget, decode_seconds
        self._async = config.scheduler_config.async_scheduling
        config.scheduler_config.policy = policy
        size = config.cache_config.block_size
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        kv = KVCacheConfig(num_blocks=20000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        config.cache_config.num_gpu_blocks = 20000
        if self._async:
            kind = HPUAsyncScheduler
        else:
            from vllm_gaudi.runtime.sync_scheduler import PrefillShareScheduler as kind
        self.scheduler: Scheduler = kind(
            vllm_config=config,
            kv_cache_config=kv,
            block_size=size,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )
        if share < 1:
            held = prefill_share._Policy(self.scheduler, share, clock=lambda: self.now)
            self.scheduler.__dict__["_frontier_prefill_share"] = held
        else:
            self.scheduler.__dict__["_frontier_prefill_share"] = None
        self._hasher = None
        if config.cache_config.enable_prefix_caching:
            init_none_hash(sha256)
            self._hasher = get_request_block_hasher(size, sha256)
        self._queue: deque = deque()
        self._free_at = 0.0
        self._arrivals: list[tuple[float, Any]] = []
        self._grammars: list[tuple[float, Future, Exception | None]] = []

    def add(
        self,
        at: float,
        name: str,
        prompt: int,
        max_tokens: int,
        grammar_at: float | None = None,
        grammar_error: Exception | None = None,
        text: str | None = None,
    ) -> None:
        """Let a request arrive; its grammar, if it has one, is compiled (or fails) at `grammar_at`.

        Requests with the same `text` begin alike; without one, no two do.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.request import Request

        structured = None if grammar_at is None else StructuredOutputsParams(json_object=True)
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, structured_outputs=structured)
        first = zlib.crc32((text or name).encode())
        ids = [(first + i) % 5000 for i in range(prompt)]
        request = Request(
            request_id=name,
            prompt_token_ids=ids,
            sampling_params=params,
            pooling_params=None,
            block_hasher=self._hasher,
        )
        if grammar_at is not None:
            future: Future = Future()
            request.structured_output_request.grammar = future
            self._grammars.append((grammar_at, future, grammar_error))
        self._arrivals.append((at, request))
        self._arrivals.sort(key=lambda pair: pair[0])

    def _take_arrivals(self) -> None:
        from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

        while self._arrivals and self._arrivals[0][0] <= self.now:
            self.scheduler.add_request(self._arrivals.pop(0)[1])
        for at, future, error in self._grammars:
            if at <= self.now and not future.done():
                if error is None:
                    future.set_result(create_autospec(StructuredOutputGrammar, instance=True))
                else:
                    future.set_exception(error)

    def run(self, until: float) -> Result:
        while self.now < until:
            self._take_arrivals()
            if self.scheduler.has_requests():
                self._schedule()
                if self._async and len(self._queue) < 2 and self._queue and self._progress:
                    continue
            if self._queue:
                self._finish()
            elif self._arrivals:
                self.now = max(self.now, self._arrivals[0][0])
            else:
                break
        return self.result

    def _schedule(self) -> None:
        output = self.scheduler.schedule()
        self._progress = output.total_num_scheduled_tokens > 0
        if not self._progress:
            return
        self.result.steps += 1
        prefill = {
            n: c
            for n, c in output.num_scheduled_tokens.items()
            if self.scheduler.requests[n].num_computed_tokens - c < self.scheduler.requests[n].num_prompt_tokens
        }
        cost = sum(prefill.values()) * self._token_seconds
        cost += self._decode_seconds if len(prefill) < len(output.num_scheduled_tokens) else 0
        self._free_at = max(self._free_at, self.now) + cost
        complete = {n for n in prefill if self._read_in(self.scheduler.requests[n])}
        self._queue.append((output, prefill, complete, self._free_at))

    def _finish(self) -> None:
        output, prefill, completed, end = self._queue.popleft()
        self.now = max(self.now, end)
        names = list(output.num_scheduled_tokens)
        complete = lambda n: n in self.scheduler.requests and (n not in prefill or n in completed)  # noqa: E731
        tokens = [[TOKEN] if complete(n) else [] for n in names]
        for name, count in prefill.items():
            self.result.chunks.append((self.now, name, count))
        for name, given in zip(names, tokens, strict=True):
            if given:
                self.result.first_token.setdefault(name, self.now)
                self.result.decode_times.setdefault(name, []).append(self.now)
        answer = SimpleNamespace(
            req_ids=names,
            req_id_to_index={n: i for i, n in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            num_nans_in_logits=None,
            kv_connector_output=None,
            cudagraph_stats=None,
            routed_experts=None,
            ec_connector_output=None,
        )
        self.scheduler.update_from_output(output, answer)

    @staticmethod
    def _read_in(request: Any) -> bool:
        return request.num_computed_tokens >= request.num_prompt_tokens
