# SPDX-License-Identifier: Apache-2.0
"""Grammar work of one step, at Muse's vocabulary and 16 rows: python gates/cpu/frontend/bench_grammar_mask.py

Prints ratios measured side by side in one run, and the bytes each path moves between device and host. Both masks run on
the CPU here, so their ratio says what the arithmetic costs, not what a device gains: that is the bytes.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch
import xgrammar as xgr
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.turn import Tool, TurnRules, turn_tag
from xgrammar.kernels.apply_token_bitmask_inplace_cpu import apply_token_bitmask_inplace_cpu

from vllm_gaudi.runtime.grammar_mask import apply_packed_mask

VOCAB, ROWS, STEPS = 202_048, 16, 25
DATA = Path(__file__).parent / "data" / "turn_grammar_beam.json"


def vocabulary() -> list[bytes]:
    """Bytes, then distinct words: what counts is how many there are."""
    words = [bytes([byte]) for byte in range(256)]
    return words + [f" w{index:x}".encode() for index in range(VOCAB - 257)] + [b"<eos>"]


def host_path(logits: torch.Tensor, packed: torch.Tensor) -> None:
    """What the runner did: all logits to float32 on the host, the CPU kernel, and back."""
    host = logits.clone().to(torch.float32)
    apply_token_bitmask_inplace_cpu(host, packed, indices=list(range(ROWS)))
    logits.copy_(host.to(logits.dtype))


def median_seconds(*functions) -> list[float]:
    """Median time of each function, taken in turns so that noise falls on all of them alike."""
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(STEPS):
        for function, times in zip(functions, taken, strict=True):
            started = time.perf_counter()
            function()
            times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in taken]


def main() -> None:
    golden = json.loads(DATA.read_text())
    tools = tuple(Tool(t["function"]["name"], t["function"].get("parameters")) for t in golden["tools"])
    tag = json.dumps(turn_tag(turn_format(golden["templates"]["T1"]), TurnRules(tools=tools, other_tools=True)))
    info = xgr.TokenizerInfo(vocabulary(), stop_token_ids=[VOCAB - 1])
    compiler = xgr.GrammarCompiler(info)
    started = time.perf_counter()
    compiled = compiler.compile_structural_tag(tag)
    first = time.perf_counter() - started
    started = time.perf_counter()
    compiler.compile_structural_tag(tag)
    again = time.perf_counter() - started
    matchers = [xgr.GrammarMatcher(compiled) for _ in range(ROWS)]
    for matcher in matchers:
        assert matcher.accept_string("<|channel|>analysis<|message|>thinking")
    packed = xgr.allocate_token_bitmask(ROWS, VOCAB)
    logits = torch.randn(ROWS, VOCAB).to(torch.bfloat16)

    def fill() -> None:
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(packed, row)

    fill_s, host_s, device_s = median_seconds(
        fill, lambda: host_path(logits, packed), lambda: apply_packed_mask(logits, packed)
    )
    words = packed.numel() * 4
    print(f"compile again / compile first          {again / first:.2e}")
    print(f"fill {ROWS} rows / host mask               {fill_s / host_s:.4f}")
    print(f"mask by words / host mask (both on CPU)  {device_s / host_s:.2f}")
    print(f"bytes moved a step, host path            {2 * logits.numel() * 2 + words}")
    print(f"bytes moved a step, mask on the device   {words}")
    print(f"tag of {len(tools)} tools {len(tag)} bytes, compiled {compiled.memory_size_bytes / 2**20:.1f} MB")


if __name__ == "__main__":
    main()
