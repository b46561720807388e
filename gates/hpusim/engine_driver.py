# SPDX-License-Identifier: Apache-2.0
"""Runs an offline engine in this process from a JSON job and writes a JSON answer; see `testing.run_engine`."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def _answer(output: Any) -> dict[str, Any]:
    choices = []
    for choice in output.outputs:
        logprobs = [
            {str(token): entry.logprob for token, entry in position.items()} for position in choice.logprobs or []
        ]
        choices.append(
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "logprobs": logprobs,
            }
        )
    return {"prompt_token_ids": list(output.prompt_token_ids or []), "choices": choices}


def _sampling(values: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    values = dict(values)
    if "structured_outputs" in values:
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    return SamplingParams(**values)


def _call(target: str, *arguments: Any) -> Any:
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def main(job_path: str, answer_path: str) -> None:
    with open(job_path) as file:
        job = json.load(file)
    if job.get("prepare"):
        importlib.import_module("torch")  # the card first: the plug-in's modules may only be imported after it
        _call(job["prepare"])
    from vllm import LLM

    start = time.perf_counter()
    llm = LLM(**job["engine"])
    answer: dict[str, Any] = {"start_seconds": time.perf_counter() - start, "batches": []}
    for batch in job["batches"]:
        prompts = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in batch["prompts"]]
        sampling = batch.get("sampling", {})
        params = [_sampling(s) for s in sampling] if isinstance(sampling, list) else _sampling(sampling)
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answer["batches"].append({"seconds": time.perf_counter() - begin, "outputs": [_answer(o) for o in outputs]})
    if job.get("call"):
        answer["call"] = _call(job["call"], llm)
    with open(answer_path, "w") as file:
        json.dump(answer, file)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
