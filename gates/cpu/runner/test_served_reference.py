# SPDX-License-Identifier: Apache-2.0
"""The judge of served tokens shares no attention code with the plug-in, whatever was imported before it."""

from __future__ import annotations

from pathlib import Path

import pytest


def _replaced(*args, **kwargs):
    raise AssertionError("the judge ran the replaced sdpa attention")


@pytest.fixture
def replaced_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    """What importing the plug-in does to transformers, with a function that tells when it runs."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", _replaced)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    from gates.hpusim import checkpoints

    return checkpoints.make("llama", tmp_path)


def test_judge_ignores_replaced_attention(checkpoint: Path, replaced_sdpa: None) -> None:
    from gates.cpu.runner.served_reference import deficits

    (deficit,) = deficits(checkpoint, [[3, 1, 4, 1, 5]], [[9, 2, 6]])
    assert deficit >= 0


def test_default_attention_would_run_it(checkpoint: Path, replaced_sdpa: None) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with pytest.raises(AssertionError, match="replaced sdpa"):
        model(torch.tensor([[3, 1, 4]]))
