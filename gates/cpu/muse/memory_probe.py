# SPDX-License-Identifier: Apache-2.0
"""Device memory of a long prefill, measured inside the engine process (`run_engine(call=...)`)."""

from __future__ import annotations

from typing import Any

TOKENS = 6000


def prefill_peak(llm: Any) -> dict[str, int]:
    """Bytes: parameters, KV cache (each tensor once), and the peak of one long prompt above both."""
    import torch
    from vllm import SamplingParams

    from gates.hpusim import memory

    seen: dict[str, int] = {}

    def measure(worker: Any) -> None:
        runner = worker.model_runner
        caches = {tensor.data_ptr(): tensor.nbytes for pair in runner.kv_caches for tensor in pair[:2]}
        model = runner.get_model()
        held = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()]}
        seen.update(kv=sum(caches.values()), weights=sum(held.values()))

    engine = llm.llm_engine.engine_core.engine_core
    measure(engine.model_executor.driver_worker.worker)
    draw = torch.Generator().manual_seed(3)
    prompt = {"prompt_token_ids": torch.randint(16, 340, (TOKENS,), generator=draw).tolist()}
    before = memory.memory_allocated()
    memory.reset_peak_memory_stats()
    llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
    return {**seen, "transient": memory.max_memory_allocated() - before}
