# SPDX-License-Identifier: Apache-2.0
"""Guard of the sampling-order patch: upstream's own block for structured output, run on rows that know their owner.

The block is taken out of the runner by its syntax tree and executed with lists in place of tensors: what is checked is
which request's settings meet which row, and that needs no arithmetic.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from gates.build import upstream_module


def structured_block(tree: Path) -> CodeType:
    """The `if self.use_structured_output:` block of the runner that samples, as code."""
    module = ast.parse((tree / "vllm_gaudi/v1/worker/hpu_model_runner.py").read_text())
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "self.use_structured_output"
        and any(
            isinstance(n, ast.Attribute) and n.attr == "_run_sampling" for stmt in node.body for n in ast.walk(stmt)
        )
    ]
    assert len(found) == 1, "the runner samples structured output in one place"
    return compile(ast.Module(body=[found[0]], type_ignores=[]), "runner", "exec")


class Rows(list[str]):
    """Logits whose row i is the id of the request that owns it."""

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def flatten(self) -> Rows:
        return self

    def __getitem__(self, at: Any) -> Any:
        return Rows(super().__getitem__(at)) if isinstance(at, slice) else Rows([super().__getitem__(at)])


def run_block(code: CodeType, decodes: list[str], prompts: list[str]) -> list[tuple[str, str]]:
    """(owner of the row, request whose settings it got) for every row of one step."""
    seen: list[tuple[str, str]] = []

    def run_sampling(changed: bool, logits: Rows, requests: list[str], pad_to: int) -> tuple[Any, None]:
        assert pad_to == len(logits)
        seen.extend(zip(list(logits), requests, strict=True))
        return SimpleNamespace(sampled_token_ids=logits, logprobs_tensors=None), None

    names = {
        "self": SimpleNamespace(
            use_structured_output=True, _run_sampling=run_sampling, apply_grammar_bitmask=lambda *words: None
        ),
        "torch": SimpleNamespace(cat=lambda parts, dim: Rows([row for part in parts for row in part])),
        "logits_decode": [Rows(decodes)] if decodes else [],
        "logits_prompt": [Rows([p]) for p in prompts],
        "grammar_output": object(),
        "scheduler_output": object(),
        "batch_changed": True,
        "pd_info": SimpleNamespace(decode_req_ids=list(decodes), prompt_req_ids=list(prompts)),
        "num_decodes": len(decodes),
        "prefill_sampled_token_ids": [],
        "decode_sampled_token_ids": [],
        "logprobs_segments": [],
    }
    exec(code, names)
    return seen


@pytest.mark.parametrize(
    ("decodes", "prompts"), [(["d0", "d1"], ["p0"]), (["d0"], ["p0", "p1", "p2"]), (["d0", "d1", "d2"], ["p0", "p1"])]
)
@pytest.mark.usefixtures("real_trees")
def test_settings_follow_the_rows_of_the_logits(decodes: list[str], prompts: list[str]) -> None:
    pairs = run_block(structured_block(upstream_module.tree()), decodes, prompts)
    assert len(pairs) == len(decodes) + len(prompts)
    assert all(owner == settings for owner, settings in pairs), pairs


@pytest.mark.parametrize(("decodes", "prompts"), [(["d0", "d1"], []), ([], ["p0", "p1"])])
@pytest.mark.usefixtures("real_trees")
def test_unmixed_steps_were_right_all_along(decodes: list[str], prompts: list[str]) -> None:
    pairs = run_block(structured_block(upstream_module.tree()), decodes, prompts)
    assert all(owner == settings for owner, settings in pairs)
