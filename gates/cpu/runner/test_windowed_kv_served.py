# SPDX-License-Identifier: Apache-2.0
"""Small Muse and Beam served with and without windowed KV: the same tokens, beyond the window, from prefix hits.

Freed blocks hold junk in every run. Without pressure the runs compute the same batches, so tokens must be equal; with
preemption the two layouts schedule differently, and each is held against its own run without pressure.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.long]

SAMPLING = {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "logprobs": 1}
PATIENCE = 3000  # seconds for an engine run; a busy machine must not decide a test
PRESSED = 30  # block ids; a request of 768 tokens needs 6 in full and 7 for each of three windows
LIMIT = 0.3  # mean |dlogprob|: 1.5 times the floor of the served check, 0.19 for the small Muse


def _muse(folder: Path) -> Path:
    from gates.checkpoints import muse
    from gates.checkpoints.muse_shapes import SHAPES
    from gates.hpusim import tokenizer

    tokenizer.save(muse.write(folder, SHAPES["served"], how=muse.SERVED, mxfp4=True))
    return folder


def _beam(folder: Path) -> Path:
    from gates.checkpoints import beam
    from gates.checkpoints.beam_shapes import SHAPES

    return beam.write(folder, SHAPES["served"], fp8=True)


def _batches() -> list[dict[str, Any]]:
    """Four requests with a common head longer than the window of 256; then two of them again, one longer.

    Each needs another block in every group a few tokens after its prompt.
    """
    draw = random.Random(5)
    head = [draw.randrange(16, 340) for _ in range(390)]
    prompts = [head + [draw.randrange(16, 340) for _ in range(n)] for n in (115, 119, 247, 244)]
    again = [prompts[1], prompts[2] + [draw.randrange(16, 340) for _ in range(40)]]
    return [{"prompts": p, "sampling": SAMPLING} for p in (prompts, again)]


def _run(folder: Path, switch: str, blocks: int | None = None) -> Any:
    from gates.hpusim.testing import run_engine

    return run_engine(
        folder,
        _batches(),
        env={
            "HPUSIM_TRACK": "0",
            "HPUSIM_FAULT_POISON": "kv",
            "VLLM_SKIP_WARMUP": "true",
            "VLLM_GAUDI_FRONTIER_WINDOWED_KV": switch,
        },
        call="gates.cpu.runner.probes:counters",
        timeout=PATIENCE,
        disable_log_stats=False,
        enable_prefix_caching=True,
        max_num_batched_tokens=256,
        block_size=128,
        max_model_len=768,
        num_gpu_blocks_override=blocks,
    )


@pytest.fixture(scope="module", params=[_muse, _beam], ids=["muse", "beam"])
def served(request, tmp_path_factory) -> tuple[Path, Any]:
    """A checkpoint and its run with windowed KV."""
    folder = request.param(tmp_path_factory.mktemp("windowed"))
    return folder, _run(folder, "auto")


def test_windowed_kv_serves_the_same_tokens(served) -> None:
    folder, on = served
    off = _run(folder, "off")
    assert "windowed KV: groups of" not in off.log
    sizes = on.log.split("windowed KV: groups of ", 1)[1].split(" layers", 1)[0]
    assert len(sizes.split("/")) == 4
    for batch in range(2):
        assert on.tokens(batch) == off.tokens(batch)
    for run in (off, on):
        counters = run.answer["call"]
        assert counters["vllm:prefix_cache_hits"] >= 256
        assert counters["vllm:num_preemptions"] == 0


def test_preemption_changes_nothing(served) -> None:
    folder, on = served
    pressed = _run(folder, "auto", PRESSED)
    assert pressed.answer["call"]["vllm:num_preemptions"] > 0
    found = [
        _differences(one["choices"][0], other["choices"][0])
        for batch in range(2)
        for one, other in zip(on.outputs(batch), pressed.outputs(batch), strict=True)
    ]
    mean = sum(map(sum, found)) / sum(map(len, found))
    print(f"mean |dlogprob| {mean:.4f} over {sum(map(len, found))} tokens")
    assert mean < LIMIT


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """|dlogprob| of the chosen tokens up to and including the first place where they differ."""
    values = []
    for a, b, first, second in zip(
        one["token_ids"], other["token_ids"], one["logprobs"], other["logprobs"], strict=True
    ):
        values.append(abs(first[str(a)] - second[str(b)]))
        if a != b:
            break
    return values
