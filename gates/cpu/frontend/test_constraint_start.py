# SPDX-License-Identifier: Apache-2.0
"""Constraints of requests that have no turn: where they start, and which library holds them."""

from __future__ import annotations

import asyncio
import importlib.util
from types import SimpleNamespace

import pytest
import xgrammar as xgr
from parser_turns import parser_class, recorded
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from toy_tokenizer import ToyTokenizer
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.parser.turn_grammar.engine import finished_grammar
from vllm.parser.turn_grammar.second_library import grammar_of_second_library
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

BEAM = recorded("beam_parse")
TOKENIZER = ToyTokenizer(BEAM["special_tokens"], BEAM["templates"]["T1"])
THINKING = "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm"


class Seen(Exception):
    """Carries what the engine was asked."""


def told(prompt: str | None, *, parser="beam", **fields):
    """`reasoning_ended` that a completion of `prompt` gives the engine."""

    def generate(*args, **kwargs):
        raise Seen(kwargs)

    async def rendered(request):
        return [{"type": "embeds"} if prompt is None else {"prompt_token_ids": TOKENIZER.encode(prompt)}]

    parser_cls = parser and parser_class({"reasoning_parser": parser, "tool_parser": None, "enable_auto_tools": False})
    serving = SimpleNamespace(
        render_completion_request=rendered,
        _base_request_id=lambda *a: "r",
        _maybe_get_adapters=lambda request: None,
        _get_data_parallel_rank=lambda raw: None,
        _extract_prompt_len=lambda entry: 1,
        _log_inputs=lambda *a, **k: None,
        model_config=SimpleNamespace(max_model_len=64),
        default_sampling_params={},
        override_max_tokens=None,
        engine_client=SimpleNamespace(generate=generate),
        renderer=SimpleNamespace(tokenizer=TOKENIZER),
        online_renderer=SimpleNamespace(parser=parser_cls),
    )
    request = CompletionRequest(model="m", prompt="x", **fields)
    with pytest.raises(Seen) as caught:
        asyncio.run(OpenAIServingCompletion._create_completion(serving, request))
    return caught.value.args[0].get("reasoning_ended")


CONSTRAINTS = [
    {"structured_outputs": {"choice": ["alpha", "beta"]}},
    {"structured_outputs": {"regex": "[0-9]{3}"}},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("fields", CONSTRAINTS)
@pytest.mark.parametrize("parser", ["beam", "muse"])
def test_completions_tell_the_engine_where_a_constraint_starts(parser, fields):
    """A prompt without a message of the assistant's begins no reasoning, so none would ever end."""
    assert told("Hello", parser=parser, **fields) is True
    assert told("Hello", parser=parser) is None  # control: nothing to hold


def test_a_prompt_inside_thinking_leaves_it_to_end():
    assert told(THINKING, **CONSTRAINTS[0]) is None
    answer = "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert told(THINKING + answer, **CONSTRAINTS[0]) is True
    assert told("<|start|>user<|message|>Hi<|end|><|start|>assistant", **CONSTRAINTS[0]) is True
    assert told(None, **CONSTRAINTS[0]) is True


@pytest.mark.parametrize("parser", [None, "qwen3"])
def test_other_parsers_keep_vllms_answer(parser):
    if parser:  # its class wants tokens that this tokenizer lacks; it is never made
        from vllm.reasoning import ReasoningParserManager

        assert ReasoningParserManager.get_reasoning_parser(parser)
    assert told("Hello", parser=parser, **CONSTRAINTS[0]) is None


VOCAB = {text: index for index, text in enumerate(["<eos>", "a", "b", "c", "A", "B", "C", "1", "?"])}


class Engine:
    """A manager as turn grammars leave it: xgrammar, whatever the request."""

    def __init__(self):
        letters = Tokenizer(BPE(VOCAB, []))
        letters.decoder = decoders.ByteLevel()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<eos>")
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: len(VOCAB)),
            structured_outputs_config=SimpleNamespace(
                disable_any_whitespace=False, disable_additional_properties=False
            ),
        )
        self.backend = XgrammarBackend.__new__(XgrammarBackend)
        self.backend.compiler = xgr.GrammarCompiler(xgr.TokenizerInfo(list(VOCAB), stop_token_ids=[0]))
        self.backend.vocab_size, self.backend.num_speculative_tokens = len(VOCAB), 0

    def grammar(self, regex: str, library: str | None):
        outputs = StructuredOutputsParams(regex=regex)
        outputs._backend = library
        request = SimpleNamespace(
            request_id="r",
            sampling_params=SamplingParams(structured_outputs=outputs),
            structured_output_request=SimpleNamespace(structured_output_key=(StructuredOutputOptions.REGEX, regex)),
        )
        compiled = lambda: self.backend.compile_grammar(StructuredOutputOptions.REGEX, regex)  # noqa: E731
        return finished_grammar(self, request, compiled), request

    def allowed(self, grammar) -> set[str]:
        mask = self.backend.allocate_token_bitmask(1)
        grammar.fill_bitmask(mask, 0)
        return {text for text, token in VOCAB.items() if mask[0, 0].item() >> token & 1}


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="llguidance is not installed")
def test_a_constraint_is_held_by_the_library_it_was_checked_against():
    engine = Engine()
    with pytest.raises(RuntimeError, match="modifier"):  # what made it an internal error
        engine.grammar("(?i)ab", "xgrammar")
    grammar, _ = engine.grammar("(?i)ab", "guidance")
    assert engine.allowed(grammar) == {"a", "A"}
    assert grammar.accept_tokens("r", [VOCAB["A"]])
    assert engine.allowed(grammar) == {"b", "B"}
    other, _ = engine.grammar("(?i)c", "guidance")
    assert len(engine._second_libraries) == 1  # one instance serves all
    assert engine.allowed(other) == {"c", "C"}
    plain, request = engine.grammar("a", "xgrammar")
    assert grammar_of_second_library(engine, request) is None
    assert engine.allowed(plain) == {"a"}


def test_a_library_with_another_vocabulary_is_refused():
    """Its mask would not fit the engine's, which ends the engine."""
    engine = Engine()
    engine.tokenizer.add_tokens([f"t{index}" for index in range(40)])
    for _ in range(2):
        with pytest.raises(ValueError, match="counts other tokens"):
            engine.grammar("(?i)ab", "guidance")
