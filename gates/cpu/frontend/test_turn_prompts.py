# SPDX-License-Identifier: Apache-2.0
"""Prompts that end inside a turn, the end of reasoning from token ids, stop tokens that come without their text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_texts import FORMATS, joined, read
from parser_turns import parser_class, recorded, request_for
from toy_tokenizer import ToyTokenizer
from vllm.parser.chat_format.prompt_text import tail_with
from vllm.parser.chat_format.turn_piece import TurnMode

BEAM, MUSE = recorded("beam_parse"), recorded("muse_parse")
CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
TURNS = {
    "T1": "<|channel|>analysis<|message|>Hm <.<|end|><|start|>assistant to=write_file" + CALL
    + '<rfl:parameter name="path">\na b\n</rfl:parameter>\n'
    + '<rfl:parameter name="content">\nx\n\n</rfl:parameter><|call|>',
    "muse": " to=self<|message|>Hm <.<|eom|><|start|>assistant to=write_file<|message|><atem:function_calls>\n"
    '<atem:invoke name="write_file">\n<atem:parameter name="path">a b</atem:parameter>\n'
    '<atem:parameter name="content">x\n</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>',
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("fragments", [True, False])
def test_a_prompt_may_end_anywhere_in_the_turn(name, fragments):
    """Wherever the prompt ends, the output completes the same call, and no byte of the prompt is reasoning again."""
    turn = TURNS[name]
    last = turn.rindex("<|start|>assistant")
    for end in range(len(turn)):
        prompt = "<|start|>user<|message|>Hi<|start|>assistant" + turn[:end]
        reasoning, content, calls = joined(read(name, list(turn[end:]), TurnMode(fragments=fragments), prompt))
        assert content == ""
        assert "Hm <.".endswith(reasoning)
        if end > last or end < turn.index("<|e"):
            closed = end >= turn.rindex("</atem:invoke>") + 14 if name == "muse" else False
            if not closed:
                ((tool, arguments),) = calls
                assert (tool, json.loads(arguments)) == ("write_file", {"path": "a b", "content": "x\n"})


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_generated_says_nothing(name):
    for prompt in (
        "",
        "x",
        "<|start|>assistant",
        "<|start|>assistant to=f" + CALL,
        "<|start|>assistant to=f<|message|>",
    ):
        assert joined(read(name, [], TurnMode(), prompt)) == ("", "", [])
        assert joined(read(name, ["", ""], TurnMode(), prompt)) == ("", "", [])


def _reasoner(data, model, template="T1", **kwargs):
    spec = data["templates"][template] if "templates" in data else None
    tokenizer = ToyTokenizer(data["special_tokens"], spec)
    cls = parser_class({"reasoning_parser": model, "tool_parser": model, "enable_auto_tools": True})
    return cls(tokenizer, [], chat_template_kwargs=kwargs).reasoning_parser, tokenizer


@pytest.mark.parametrize("template", ["T1", "T2", "T3"])
def test_beam_reasoning_ends_at_its_closer(template):
    reasoner, tokenizer = _reasoner(BEAM, "beam", template)
    closer = BEAM["templates"][template]["fields"]["thinking"]["close"]
    ids = tokenizer.encode("<|start|>assistant<|channel|>analysis<|message|>a <|end|")
    for token in tokenizer.encode("<|end|><|start|>assistant<|channel|>final"):
        ids.append(token)
        ended = tokenizer.decode(ids).endswith(closer)
        assert reasoner.is_reasoning_end_streaming(ids, [token]) is ended
    # Several tokens in a step, the closer among them.
    assert reasoner.is_reasoning_end_streaming(ids, ids[-20:])


def test_muse_reasoning_ends_at_the_answer_or_a_call():
    reasoner, tokenizer = _reasoner(MUSE, "muse")
    for header, ends in (
        (" to=self", False),
        ("", False),
        (" to=developer", False),
        (" to=user", True),
        (" to=f.g", True),
    ):
        ids = tokenizer.encode(f"<|start|>assistant to=self<|message|>t<|eom|><|start|>assistant{header}<|message|>")
        assert reasoner.is_reasoning_end_streaming(ids, ids[-1:]) is ends
        assert reasoner.is_reasoning_end_streaming(ids[:-1], ids[-2:-1]) is False
        assert reasoner.is_reasoning_end(ids) is ends


def test_muse_examples_in_the_system_prompt_end_nothing():
    reasoner, tokenizer = _reasoner(MUSE, "muse")
    text = "<|start|>system<|message|> to=user<|message|>x<atem:invoke name='x'><|eot|><|start|>assistant"
    assert reasoner.is_reasoning_end(tokenizer.encode(text)) is False


@pytest.mark.parametrize(("enabled", "ended"), [(True, False), (False, True)])
def test_thinking_turned_off_has_ended_before_it_begins(enabled, ended):
    reasoner, tokenizer = _reasoner(BEAM, "beam", enable_thinking=enabled)
    assert reasoner.is_reasoning_end(tokenizer.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant")) is ended


@pytest.mark.parametrize(("data", "model", "stop"), [(BEAM, "beam", "<|call|>"), (MUSE, "muse", "<|eot|>")])
def test_a_stop_token_without_text_closes_the_call(data, model, stop):
    """The engine keeps a stop token but not its text; a call that it ended is whole JSON, unlike one that was cut."""
    case = next(c for c in data["cases"] if c["name"] == ("trunc_long_value" if model == "beam" else "trunc_in_value"))
    for last, whole in (([], False), ([stop], True)):
        tokenizer = ToyTokenizer(data["special_tokens"], data["templates"]["T1"] if model == "beam" else None)
        options = {"reasoning_parser": model, "tool_parser": model, "enable_auto_tools": True, "request": {}}
        request = request_for(options, data["tools"])
        parser = parser_class(options)(tokenizer, request.tools)
        prompt = tokenizer.encode(case["prompt"])
        first = parser.parse_delta(case["text"], [1], request, prompt, finished=False)
        rest = parser.parse_delta("", [tokenizer.special[token] for token in last], request, prompt, finished=True)
        pieces = [c.function.arguments for d in (first, rest) if d for c in d.tool_calls]
        try:
            json.loads("".join(pieces))
        except json.JSONDecodeError:
            assert not whole
        else:
            assert whole


class CountingTokenizer(ToyTokenizer):
    decoded = 0

    def decode(self, ids, **options):
        self.decoded += len(ids)
        return super().decode(ids, **options)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500))
def test_only_the_tail_of_a_prompt_is_decoded(before, after):
    tokenizer = CountingTokenizer(BEAM["special_tokens"])
    prompt = tokenizer.encode("x" * 5000 + "<|start|>assistant" + "y" * before + "<|start|>assistant" + "z" * after)
    text = tail_with(tokenizer, prompt, lambda text: "<|start|>assistant" in text)
    assert text.rpartition("<|start|>assistant")[2] == "z" * after
    assert tokenizer.decoded <= max(256, 4 * (after + 20))


def test_a_prompt_without_anchor_is_read_whole():
    tokenizer = ToyTokenizer(BEAM["special_tokens"])
    assert tail_with(tokenizer, tokenizer.encode("x" * 1000), lambda text: False) == "x" * 1000
