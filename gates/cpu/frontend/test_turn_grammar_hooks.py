# SPDX-License-Identifier: Apache-2.0
"""The hooks that carry a turn grammar into the engine: each fails without its patch."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import xgrammar as xgr
from packaging.requirements import Requirement
from turn_harness import recorded, request_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar.engine import with_stop_ids
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

GOLDEN = recorded("turn_grammar_beam")
TEMPLATE = GOLDEN["templates"]["T1"]
SPECIAL = GOLDEN["special_tokens"]
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"


class ByteTokenizer:
    """Bytes, the special tokens, and `<|return|>` as EOS: what an xgrammar backend asks for."""

    init_kwargs: ClassVar = {"response_template": TEMPLATE}
    ids: ClassVar = {text: 256 + index for index, text in enumerate(SPECIAL)}


def manager(executor=None, **config) -> StructuredOutputManager:
    """A manager with a real xgrammar backend over bytes, without an engine around it."""
    made = StructuredOutputManager.__new__(StructuredOutputManager)
    made.tokenizer = ByteTokenizer()
    made.executor = executor
    backend = XgrammarBackend.__new__(XgrammarBackend)
    vocab = [bytes([byte]) for byte in range(256)] + [text.encode() for text in SPECIAL]
    info = xgr.TokenizerInfo(vocab, stop_token_ids=[ByteTokenizer.ids["<|return|>"]])
    backend.compiler = xgr.GrammarCompiler(info)
    backend.vocab_size, backend.num_speculative_tokens = len(vocab), 0
    backend.disable_any_whitespace = False
    made.backend = backend
    return made


def grammar_for(stop_tokens: list[str], made: StructuredOutputManager | None = None, own: str = ""):
    """The grammar of a forced call. `own`: characters that the client has as stop ids, beside the model's."""
    request = constrain_request(
        request_of({"tool_choice": "required"}, GOLDEN["tools"]),
        turn_format(TEMPLATE),
        prompt=PROMPT,
        serving=Serving(),
    )
    params = SamplingParams(structured_outputs=request.structured_outputs)
    params._all_stop_token_ids = {ByteTokenizer.ids[text] for text in stop_tokens} | set(own.encode())
    # As vLLM leaves them: the client's, and the generation config's beside the tokenizer's EOS.
    params.stop_token_ids = [*own.encode(), *(ByteTokenizer.ids[text] for text in stop_tokens[1:])] if own else []
    key = (StructuredOutputOptions.STRUCTURAL_TAG, request.structured_outputs.structural_tag)
    engine_request = SimpleNamespace(
        request_id="r", sampling_params=params, structured_output_request=SimpleNamespace(structured_output_key=key)
    )
    return (made or manager())._create_grammar(engine_request)


def allowed(grammar) -> list[str]:
    mask = xgr.allocate_token_bitmask(1, grammar.vocab_size)
    grammar.fill_bitmask(mask, 0)
    return [text for text, token in ByteTokenizer.ids.items() if mask[0, token // 32].item() >> (token % 32) & 1]


def feed(grammar, text: str) -> None:
    assert grammar.accept_tokens("r", list(text.encode()))


def test_stop_ids_reach_the_matcher():
    """A second EOS of the generation config cannot end the turn inside its thinking."""
    thinking = "<|channel|>analysis<|message|>r"
    one, both = grammar_for(["<|return|>"]), grammar_for(["<|return|>", "<|call|>"])
    feed(one, thinking)
    feed(both, thinking)
    assert "<|call|>" in allowed(one)  # control: as text, where the engine would stop
    assert "<|call|>" not in allowed(both)
    feed(both, "<|end|><|start|>assistant to=noop<|channel|>analysis <|constrain|>xml<|message|>")
    assert {"<|call|>", "<|return|>"} <= set(allowed(both))


def test_a_clients_own_stop_ids_are_text_to_the_grammar():
    """A letter of a header among them: refused, it would leave no token to go on with."""
    made = manager()
    config = {"eos_token_id": [ByteTokenizer.ids["<|return|>"], ByteTokenizer.ids["<|call|>"]]}
    made.vllm_config = SimpleNamespace(model_config=SimpleNamespace(try_get_generation_config=lambda: config))
    grammar = grammar_for(["<|return|>", "<|call|>"], made, own="a")
    feed(grammar, "<|channel|>analysis<|message|>r")
    assert "<|call|>" not in allowed(grammar)  # the model's second end stays one
    feed(grammar, "a<|end|><|start|>assistant to=noop<|channel|>analysis <|constrain|>xml<|message|>")
    assert {"<|call|>", "<|return|>"} <= set(allowed(grammar))


@pytest.mark.parametrize("outside", [-1, 10**6, 2**31, 2**40, 2**63])
def test_stop_ids_that_are_no_tokens_stop_nothing(outside):
    """xgrammar raises on some, in the engine, and takes 2**40 for token 0."""
    made = manager()
    grammar = grammar_for(["<|return|>"], made)
    expected = allowed(grammar)
    tried = with_stop_ids(grammar, {ByteTokenizer.ids["<|return|>"], outside}, 0)
    assert allowed(tried) == expected
    assert allowed(with_stop_ids(grammar, {outside}, 0))


@pytest.mark.parametrize("ids", [[-1], [5, 300], [2**40]])
def test_stop_ids_that_are_no_tokens_are_refused(ids):
    """With `min_tokens` the engine masks every stop id at its index, which would end it."""
    model = SimpleNamespace(get_vocab_size=lambda: 300, max_logprobs=20, logits_processors=None, is_diffusion=False)
    SamplingParams(stop_token_ids=[0, 299]).verify(model, None, None, None)
    with pytest.raises(VLLMValidationError, match="from 0 to 299") as caught:
        SamplingParams(stop_token_ids=ids).verify(model, None, None, None)
    assert caught.value.parameter == "stop_token_ids"


def test_tokens_after_the_end_are_taken():
    """With ignore_eos the engine goes on; upstream's grammar then fails the request."""
    grammar = grammar_for(["<|return|>", "<|call|>"])
    feed(
        grammar,
        "<|channel|>analysis<|message|>r<|end|><|start|>assistant to=noop<|channel|>analysis "
        "<|constrain|>xml<|message|>",
    )
    assert grammar.accept_tokens("r", [ByteTokenizer.ids["<|call|>"], 65])
    assert grammar.is_terminated()
    assert grammar.accept_tokens("r", [66])


def test_a_refused_token_still_fails():
    grammar = grammar_for(["<|return|>"])
    assert not grammar.accept_tokens("r", [65])


def test_compile_time_and_cache_size_are_logged(caplog, monkeypatch):
    monkeypatch.setattr("vllm.parser.turn_grammar.engine.SLOW_COMPILE_SECONDS", 0.0)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO):
        grammar_for(["<|return|>"])
    assert any("Compiled a grammar in" in text and "grammar cache" in text for text in caplog.messages)


@pytest.mark.parametrize("parser", ["beam", "response_template", "muse"])
def test_plain_grammar_is_compiled_at_start(parser, monkeypatch):
    """After the start, the first plain request finds its grammar in the compiler's cache."""
    from vllm.v1.structured_output.turn_hooks import compile_at_start

    made = manager(executor=ThreadPoolExecutor(1))
    ready = made.backend
    monkeypatch.setattr("vllm.parser.turn_grammar.engine.XgrammarBackend", lambda *a, **k: ready)
    made.vllm_config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(reasoning_parser=parser, backend="auto"),
        model_config=SimpleNamespace(skip_tokenizer_init=False, get_vocab_size=lambda: ready.vocab_size),
    )
    before = ready.compiler.get_cache_size_bytes()
    compile_at_start(made)
    made.executor.shutdown()
    filled = ready.compiler.get_cache_size_bytes()
    assert filled > before
    if parser != "muse":
        request = constrain_request(request_of({}, None), turn_format(TEMPLATE), prompt=PROMPT, serving=Serving())
        ready.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, request.structured_outputs.structural_tag)
        assert ready.compiler.get_cache_size_bytes() == filled


def test_other_parsers_compile_nothing():
    from vllm.v1.structured_output.turn_hooks import compile_at_start

    made = manager()
    made.backend = None
    made.vllm_config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(reasoning_parser="qwen3", backend="auto"),
        model_config=SimpleNamespace(skip_tokenizer_init=False),
    )
    compile_at_start(made)
    assert made.backend is None


def test_manager_starts_the_compilation(monkeypatch):
    """The hook at the end of the manager's constructor."""
    seen = []
    monkeypatch.setattr("vllm.v1.structured_output.compile_at_start", seen.append)
    off = SimpleNamespace(reasoning_parser=None, reasoning_parser_plugin=None, enable_in_reasoning=False)
    made = StructuredOutputManager(
        SimpleNamespace(
            parallel_config=SimpleNamespace(distributed_executor_backend="uni"),
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            model_config=SimpleNamespace(skip_tokenizer_init=True),
            structured_outputs_config=off,
        )
    )
    assert seen == [made]


def test_responses_request_hands_over_the_grammar():
    """The parser's grammar wins over `text.format`, whose echo stays."""
    fields = {
        "api": "responses",
        "text": {
            "format": {
                "type": "json_schema",
                "name": "s",
                "schema": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            }
        },
    }
    request = request_of(fields, None)
    assert request.extract_structured_outputs().json is not None
    constrain_request(request, turn_format(TEMPLATE), prompt=PROMPT, serving=Serving())
    handed = request.to_sampling_params(16).structured_outputs
    assert isinstance(handed, StructuredOutputsParams)
    assert json.loads(handed.structural_tag)["type"] == "structural_tag"
    assert request.text.format.type == "json_schema"


@pytest.mark.parametrize(("from_start", "expected"), [(True, True), (False, None)])
def test_responses_start_with_reasoning_ended(from_start, expected):
    """The engine is told that the grammar covers the thinking."""
    import asyncio

    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses

    seen = {}

    async def generate(*args, **kwargs):
        seen.update(kwargs)
        yield "output"

    serving = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=8),
        _log_inputs=lambda *a, **k: None,
        engine_client=SimpleNamespace(generate=generate),
    )
    context = SimpleNamespace(
        append_output=lambda output: None, need_builtin_tool_call=lambda: False, grammar_from_start=from_start or None
    )

    async def run():
        stream = OpenAIServingResponses._generate_with_builtin_tools(serving, "r", None, None, context)
        return [item async for item in stream]

    assert asyncio.run(run()) == [context]
    assert seen["reasoning_ended"] is expected


def required_by_vllm() -> list[str]:
    """Requirements of the tree that a guard run names; without one, of the installed wheel."""
    tree = os.environ.get("FRONTIER_TREE_VLLM")
    if not tree:
        return importlib.metadata.requires("vllm") or []
    return (Path(tree) / "requirements" / "common.txt").read_text().splitlines()


def test_installed_vllm_requires_a_grammar_that_excludes():
    pinned = next(Requirement(text.split("#")[0]) for text in required_by_vllm() if text.startswith("xgrammar"))
    assert not pinned.specifier.contains("0.2.7")
    assert pinned.specifier.contains("0.2.8")
    assert not pinned.specifier.contains("0.3.0")


def test_installed_xgrammar_excludes_inside_json():
    """The pin's reason, as a fact about the installed version."""
    tag = {
        "type": "structural_tag",
        "format": {"type": "json_schema", "json_schema": {"type": "string"}, "excludes": ["<x>"]},
    }
    compiled = xgr.GrammarCompiler(xgr.TokenizerInfo([bytes([b]) for b in range(256)])).compile_structural_tag(tag)
    matcher = xgr.GrammarMatcher(compiled)
    assert matcher.accept_string('"a <y>')
    assert not matcher.accept_string(" <x>")


def test_mask_shape_is_the_vocabulary():
    grammar = grammar_for(["<|return|>"])
    assert xgr.allocate_token_bitmask(1, grammar.vocab_size).dtype is torch.int32
