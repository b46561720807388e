# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler and the plug-in's runner around a toy model whose answer depends on every token it is fed.

The model keeps token ids instead of keys and values: it writes the fed ids through the slot mapping, reads its
context back through the block lists, and answers with a hash of what it read. A token fed to the wrong row, a
stale id, a foreign block or a shifted row of logits therefore changes the answer. What each request must return
is known without any of that machinery: `next_token` applied to its own tokens.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gates.cpu.runner.sampling_rules import Rule

POISON = -7


def next_token(tokens: Any, vocabulary: int) -> int:
    """The toy model's answer to `tokens`; always an ordinary token with a free neighbour."""
    digest = zlib.crc32(np.asarray(tokens, dtype=np.int32).tobytes())
    return 16 + 2 * (digest % ((vocabulary - 32) // 2)) + (digest >> 16 & 1)


def allowed_neighbour(token: int) -> int:
    """What the model answers when the grammar forbids `token` but allows its neighbour."""
    return token ^ 1


def toy_logits(answer: int, vocabulary: int) -> np.ndarray:
    """Logits [vocabulary] fp32: the answer first, its neighbour second, and no ties among the rest."""
    logits = -np.arange(vocabulary, dtype=np.float32) / vocabulary
    logits[answer], logits[answer ^ 1] = 10, 5
    return logits


class ToyModel:
    """Stands in for `HPUModelRunner._execute_model_generic`."""

    def __init__(self, blocks: int, block_size: int, vocabulary: int):
        self.cache = np.full((blocks + 1) * block_size, POISON, dtype=np.int64)
        self.block_size = block_size
        self.vocabulary = vocabulary
        self.forwards = 0

    def compute_logits(self, answers: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of `toy_logits`, for answers [rows] or hidden states [rows, 1]."""
        answers = answers.flatten()
        rest = -torch.arange(self.vocabulary, dtype=torch.float32) / self.vocabulary
        logits = rest.to("hpu").repeat(len(answers), 1)
        rows = torch.arange(len(answers), device="hpu")
        logits[rows, answers.long()] = 10
        logits[rows, answers.long() ^ 1] = 5
        return logits

    def forward(
        self, token_ids: Any, position_ids: Any, metadata: Any, logits_indices: Any, *args: Any, **kwargs: Any
    ) -> tuple:
        rows = self._prefill(token_ids, metadata) if metadata.is_prompt else self._decode(token_ids, metadata)
        self.forwards += 1
        answers = torch.tensor(rows, device="hpu")
        shape = (token_ids.size(0), -1, 1)
        picked = answers[logits_indices.long()]
        return answers.view(shape), None, picked.view(-1, 1), self.compute_logits(picked)

    def _blocks(self, ids: Any) -> np.ndarray:
        slots = np.asarray(ids)[:, None] * self.block_size + np.arange(self.block_size)
        return self.cache[slots]

    def _prefill(self, token_ids: Any, metadata: Any) -> list[int]:
        batch, width = token_ids.shape
        slots = metadata.slot_mapping.view(batch, width).cpu().numpy()
        fed = token_ids.cpu().numpy()
        answers = []
        for row in range(batch):
            count = int(metadata.seq_lens_tensor[row].cpu())
            context: list[int] = []
            if metadata.block_list is not None:
                blocks = metadata.block_list.view(batch, -1)[row].cpu().numpy()
                context = self._blocks(blocks).ravel()[: int(metadata.context_lens_tensor[row].cpu())].tolist()
            self.cache[slots[row, :count]] = fed[row, :count]
            known = list(context)
            for column in range(width):
                if column < count:
                    known.append(int(fed[row, column]))
                answers.append(next_token(known, self.vocabulary) if column < count else 0)
        return answers

    def _decode(self, token_ids: Any, metadata: Any) -> list[int]:
        self.cache[metadata.slot_mapping.flatten().cpu().numpy()] = token_ids.flatten().cpu().numpy()
        groups = metadata.block_groups.cpu().numpy()
        usage = metadata.block_usage.cpu().to(torch.int64).numpy()
        read = self._blocks(metadata.block_list.cpu().numpy())
        answers = []
        for row in range(token_ids.size(0)):
            context = [read[i, : usage[i]] for i in np.flatnonzero(groups == row)]
            answers.append(next_token(np.concatenate(context), self.vocabulary) if context else 0)
        return answers


@dataclass
class Track:
    """One request as the test knows it; `window` limits what the model sees of it.

    With `sliding_groups` the model sees all of it, then the window once for each of those groups. `asked` is its
    `prompt_logprobs`, `scores` every LogprobsTensors that came back for its prompt.
    """

    prompt: list[int]
    max_tokens: int
    structured: bool
    window: int = 0
    sliding_groups: int = 0
    got: list[int] = field(default_factory=list)
    rule: Rule | None = None
    asked: int | None = None
    scores: list[Any] = field(default_factory=list)

    def wrong_score(self, vocabulary: int) -> str | None:
        """What is wrong with the prompt's log-probabilities, None if they are what the request must return.

        They must come once if they were asked for, and row i must score token i + 1 and the best tokens after
        tokens 0 to i; in a log-softmax of `toy_logits`, by numpy.
        """
        if len(self.scores) != (self.asked is not None):
            return f"{len(self.scores)} sets of prompt scores"
        for tensors in self.scores:
            ids, values = tensors.logprob_token_ids.cpu().numpy(), tensors.logprobs.cpu().numpy()
            if ids.shape != (len(self.prompt) - 1, self.asked + 1):
                return f"prompt scores of shape {ids.shape}"
            for i, (tokens, row) in enumerate(zip(ids, values, strict=True)):
                logits = toy_logits(next_token(self.prompt[: i + 1], vocabulary), vocabulary).astype(np.float64)
                known = 0 <= tokens.min() <= tokens.max() < vocabulary
                best = np.argsort(-logits)[: self.asked]
                if not known or tokens[0] != self.prompt[i + 1] or (tokens[1:] != best).any():
                    return f"prompt score {i}: tokens {tokens.tolist()}"
                if np.abs(row - (logits[tokens] - np.log(np.exp(logits).sum()))).max() > 1e-3:
                    return f"prompt score {i}: values {row.tolist()}"
        return None

    def expected(self, vocabulary: int, count: int) -> list[int]:
        """The first `count` tokens the request must return."""
        known, answers = list(self.prompt), []
        chooser = self.rule.run(vocabulary, self.prompt) if self.rule else None
        for _ in range(count):
            seen = known[-self.window :]
            token = next_token(known + seen * self.sliding_groups if self.sliding_groups else seen, vocabulary)
            if chooser:
                logits = toy_logits(token, vocabulary)
                logits[1::2] = -np.inf if self.structured else logits[1::2]
                token = chooser.pick(logits)
            elif self.structured and token % 2:
                token = allowed_neighbour(token)
            answers.append(token)
            known.append(token)
            if chooser and chooser.ends(token):
                break
        return answers


def vllm_config(checkpoint: Path, **arguments: Any) -> Any:
    """A VllmConfig for `checkpoint`, built once per process by the caller (vLLM keeps global state)."""
    from vllm.engine.arg_utils import EngineArgs

    values = {
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "enforce_eager": True,
        "seed": 0,
        "block_size": 16,
        "enable_prefix_caching": True,
        **arguments,
    }
    return EngineArgs(model=str(checkpoint), **values).create_engine_config()


class ToyEngine:
    """Scheduler, runner and toy model, stepped as vLLM's engine core does."""

    def __init__(self, config: Any, blocks: int = 24, window: int = 0, groups: Any = None):
        """`groups`: a KVCacheConfig with several groups; `window` is that of the model's sliding layers."""
        from vllm.config import set_current_vllm_config
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler
        from vllm_gaudi.v1.worker import hpu_model_runner

        self.config, self.blocks = config, blocks
        size = config.cache_config.block_size
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        one = [KVCacheGroupSpec(["layer"], spec)]
        kv = groups or KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=one)
        config.cache_config.num_gpu_blocks = blocks
        self.is_async = config.scheduler_config.async_scheduling
        kind = HPUAsyncScheduler if self.is_async else Scheduler
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=kv,
            block_size=size,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(config),
        )
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self._hasher = get_request_block_hasher(size, hash_fn)

        hpu_model_runner.get_pp_group = lambda: SimpleNamespace(is_last_rank=True, is_first_rank=True, world_size=1)
        with set_current_vllm_config(config):
            runner = hpu_model_runner.HPUModelRunner(config, torch.device("hpu"), True)
        runner.kv_cache_config = kv
        runner._PAD_BLOCK_ID, runner._PAD_SLOT_ID = blocks, blocks * size
        runner.unified_attn = False
        runner.bucketing_manager.num_hpu_blocks = blocks
        runner.bucketing_manager.generate_prompt_buckets()
        runner.bucketing_manager.generate_decode_buckets()
        self.vocabulary = config.model_config.get_vocab_size()
        self.window, self.sliding_groups = window, 0
        if groups:
            from gates.cpu.runner.grouped_toy import GroupedToy
            from vllm_gaudi.runtime import windowed_kv

            adopted = windowed_kv.adopt(runner, kv)
            assert adopted is not None
            self.sliding_groups = len(adopted.sliding)
            self.toy: ToyModel = GroupedToy(blocks, size, self.vocabulary, runner, self.scheduler)
        elif window:
            from gates.cpu.runner.window_toy import WindowToy

            self.toy = WindowToy(blocks, size, self.vocabulary, runner)
        else:
            self.toy = ToyModel(blocks, size, self.vocabulary)
        runner.model = self.toy
        runner._execute_model_generic = self.toy.forward
        runner.kv_caches = []
        self.runner = runner
        self.tracks: dict[str, Track] = {}
        self._queue: deque = deque()

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int,
        structured: bool = False,
        rule: Rule | None = None,
        **sampling: Any,
    ) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        values = {"temperature": 0, "ignore_eos": True, **(rule.sampling if rule else {}), **sampling}
        params = SamplingParams(max_tokens=max_tokens, **values)
        self.tracks[name] = Track(prompt, max_tokens, structured, self.window, self.sliding_groups, rule=rule)
        self.tracks[name].asked = params.prompt_logprobs
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=params,
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def abort(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.tracks.pop(name, None)

    def _grammar(self, output: Any) -> Any | None:
        from vllm.v1.core.sched.output import GrammarOutput

        names = [
            n
            for n in output.num_scheduled_tokens
            if n in self.tracks and self.tracks[n].structured and not self.scheduler.requests[n].is_prefill_chunk
        ]
        if not names:
            return None
        even = np.full((len(names), -(-self.vocabulary // 32)), 0x55555555, dtype=np.int32)
        return GrammarOutput(names, even)

    def step(self) -> dict[str, list[int]]:
        """One step of the engine core; returns new tokens per request, already checked against `expected`."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            result = self.runner.execute_model(output)
            if result is None:
                result = self.runner.sample_tokens(self._grammar(output))
            if output.total_num_scheduled_tokens or not self.is_async:
                self._queue.append((output, result))
            if self.is_async and len(self._queue) < 2 and output.total_num_scheduled_tokens:
                return {}
        if not self._queue:
            return {}
        return self._finish(*self._queue.popleft())

    def _finish(self, output: Any, result: Any) -> dict[str, list[int]]:
        if hasattr(result, "get_output"):
            result = result.get_output()
        new = {}
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                if one.new_prompt_logprobs_tensors is not None and one.request_id in self.tracks:
                    self.tracks[one.request_id].scores.append(one.new_prompt_logprobs_tensors)
                if one.new_token_ids and one.request_id in self.tracks:
                    track = self.tracks[one.request_id]
                    track.got.extend(one.new_token_ids)
                    new[one.request_id] = list(one.new_token_ids)
        return new

    def run(self, limit: int = 5000) -> None:
        """Step until every request has finished."""
        for _ in range(limit):
            if not self.scheduler.has_requests() and not self._queue:
                return
            self.step()
        raise AssertionError(f"requests left after {limit} steps: {list(self.scheduler.requests)}")

    def wrong(self) -> dict[str, int]:
        """Requests whose tokens are not what they must be: name and first wrong position (or missing)."""
        found = {}
        for name, track in self.tracks.items():
            expected = track.expected(self.vocabulary, len(track.got))
            if track.got != expected:
                found[name] = next(i for i, (a, b) in enumerate(zip(track.got, expected, strict=True)) if a != b)
            elif len(track.got) != track.max_tokens and name not in self.scheduler.requests:
                found[name] = len(track.got)
        return found
