# SPDX-License-Identifier: Apache-2.0
"""The grammar mask on the device: bit for bit xgrammar's CPU kernel, and no logits on the host."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st
from turn_harness import recorded

from vllm_gaudi.runtime.grammar_mask import apply_packed_mask, mask_on_device

RECORDED = recorded("grammar_bitmask")["cases"]
SPECIAL_VALUES = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-40, 3.4e38, -1.5]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bit pattern, so that NaN and -0.0 compare."""
    return tensor.contiguous().view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def by_kernel(logits: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """xgrammar's CPU kernel through float32, as the host path applies it."""
    host = logits.to(torch.float32, copy=True)  # the kernel works in place
    from xgrammar.kernels.apply_token_bitmask_inplace_cpu import apply_token_bitmask_inplace_cpu

    apply_token_bitmask_inplace_cpu(host, packed)
    return host.to(logits.dtype)


@pytest.mark.parametrize("index", [i for i, case in enumerate(RECORDED) if case["vocab_size_arg"] is None])
def test_recorded_kernel_results(index):
    case = RECORDED[index]
    packed = torch.tensor(case["bitmask"], dtype=torch.int32)
    rows = packed.shape[0]
    if case["indices"] is not None:
        # The runner gives every row a mask: rows that are not listed are all ones.
        chosen = torch.full_like(packed, -1)
        chosen[case["indices"]] = packed[case["indices"]]
        packed = chosen
    logits = torch.zeros(rows, case["vocab"])
    apply_packed_mask(logits, packed)
    masked = [torch.nonzero(torch.isinf(row)).flatten().tolist() for row in logits]
    assert masked == case["masked_columns"]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    vocab=st.integers(32, 300),  # below about 16 the kernel writes beyond its row and corrupts the heap
    short=st.integers(0, 2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_matches_the_cpu_kernel_bit_for_bit(rows, vocab, short, dtype, seed):
    generator = np.random.default_rng(seed)
    words = max(1, -(-vocab // 32) - short)
    packed = generator.integers(-(2**31), 2**31, (rows, words), dtype=np.int64).astype(np.int32)
    packed[generator.random(rows) < 0.3] = -1
    values = generator.standard_normal((rows, vocab)).astype(np.float32)
    odd = generator.random(values.shape) < 0.2
    values[odd] = generator.choice(SPECIAL_VALUES, odd.sum()).astype(np.float32)
    logits = torch.from_numpy(values).to(dtype)
    # A NaN's payload is not the mask's concern: one round trip settles it.
    logits = logits.to(torch.float32).to(dtype)
    mask = torch.from_numpy(packed)
    expected = by_kernel(logits, mask)
    ours = apply_packed_mask(logits.clone(), mask)
    assert torch.equal(bits(ours), bits(expected))


@pytest.mark.parametrize("rows", [1, 16])
def test_full_vocabulary(rows):
    generator = torch.Generator().manual_seed(rows)
    vocab = 202_048
    packed = torch.randint(-(2**31), 2**31, (rows, vocab // 32), generator=generator).to(torch.int32)
    packed[::3] = -1
    logits = torch.randn(rows, vocab, generator=generator).to(torch.bfloat16)
    assert torch.equal(bits(apply_packed_mask(logits.clone(), packed)), bits(by_kernel(logits, packed)))


@pytest.mark.parametrize(
    "packed",
    [torch.zeros(2, 1, dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)],
)
def test_wrong_shapes_are_refused(packed):
    with pytest.raises(ValueError, match=r"int32 \[3, words\] expected"):
        apply_packed_mask(torch.zeros(3, 32), packed)


class Step:
    """One sampling step of a runner: three requests, the middle one without a grammar."""

    vocab = 1000
    order = ("free", "first", "second")

    def __init__(self, spec: dict[str, list[int]] | None = None):
        self.scheduler = SimpleNamespace(scheduled_spec_decode_tokens=spec or {})
        masks = xgr.allocate_token_bitmask(2, self.vocab)
        masks.zero_()
        masks[0, 0], masks[1, 1] = 0b1010, -(2**31)
        self.grammar = SimpleNamespace(structured_output_request_ids=["second", "first"], grammar_bitmask=masks.numpy())
        self.runner = SimpleNamespace(
            device=torch.device("hpu"),
            input_batch=SimpleNamespace(req_id_to_index={name: i for i, name in enumerate(self.order)}),
        )
        self.logits = torch.arange(3 * self.vocab, dtype=torch.bfloat16).reshape(3, self.vocab).to("hpu")

    def run(self) -> Counter:
        """Bytes copied by direction while the runner's own method masks the step's logits."""
        from gates.hpusim import probe
        from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

        moved: Counter = Counter()

        def listen(kind, nbytes, info):
            moved[kind] += nbytes

        probe.listeners.append(listen)
        try:
            HPUModelRunner.apply_grammar_bitmask(self.runner, self.scheduler, self.grammar, self.logits)
        finally:
            probe.listeners.remove(listen)
        return moved

    def finite(self) -> list[list[int]]:
        return [torch.nonzero(torch.isfinite(row)).flatten().tolist() for row in self.logits.cpu().float()]


def test_runner_copies_no_logits_to_the_host():
    step = Step()
    moved = step.run()
    assert moved["d2h"] == 0
    assert moved["sync"] == 0
    assert moved["h2d"] <= 3 * -(-Step.vocab // 32) * 4 + 32 * 4  # the packed words, and the constant once
    free, first, second = step.finite()
    assert len(free) == Step.vocab
    assert first == [63]
    assert second == [1, 3]


def test_host_path_would_be_seen(monkeypatch):
    """Control: with the device path off, the counters show the round trip of the logits."""
    import vllm_gaudi.v1.worker.hpu_model_runner as module

    monkeypatch.setattr(module, "mask_on_device", lambda *args: False)
    step = Step()
    assert step.run()["d2h"] >= 3 * Step.vocab * 2
    assert step.finite()[1:] == [[63], [1, 3]]


def test_speculative_rows_take_the_host_path():
    logits = torch.zeros(2, 64)
    step = SimpleNamespace(scheduled_spec_decode_tokens={"a": [7]})
    assert not mask_on_device(logits, np.zeros((2, 2), np.int32), step)
    assert torch.equal(logits, torch.zeros(2, 64))
