# SPDX-License-Identifier: Apache-2.0
"""No reference may run transformers' sdpa attention: importing the plug-in replaces that function in the process.

A judge that did would share code with what it judges, or fail (docs/upstream/transformers-sdpa.md).
"""

from __future__ import annotations

import ast

import pytest
from hpusim_ops import ROOT

# Functions that build such a model and never run it, or run it to show what goes wrong.
ALLOWED = {
    ("gates/hpusim/checkpoints.py", "make"),  # draws weights and saves them
    ("gates/cpu/runner/test_served_reference.py", "test_default_attention_would_run_it"),  # the control
}


def sdpa_models(source: str) -> set[str]:
    """Functions of `source` that make a Hugging Face model without asking for eager attention."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            owner = call.func.value
            if call.func.attr not in ("from_pretrained", "from_config") or not isinstance(owner, ast.Name):
                continue
            model = owner.id.startswith("AutoModel") or owner.id.endswith(("ForCausalLM", "PreTrainedModel"))
            asked = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
            if model and asked.get("attn_implementation") != "eager":
                found.add(function.name)
    return found


def test_every_reference_beside_the_plugin_runs_eager_attention():
    found = set()
    for folder in ("gates/cpu", "gates/hpusim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            found |= {(name, function) for function in sdpa_models(path.read_text())}
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        ("AutoModelForCausalLM.from_pretrained(path)", True),
        ('LlamaForCausalLM.from_pretrained(path, attn_implementation="sdpa")', True),
        ('AutoModel.from_config(config, attn_implementation="eager")', False),
        ("AutoConfig.from_pretrained(path)", False),
    ],
)
def test_the_scan_sees_what_it_is_for(call, seen):
    assert bool(sdpa_models(f"def judge(path, config):\n    return {call}\n")) is seen
