# SPDX-License-Identifier: Apache-2.0
"""What users of these models and their kin reported, each with the value it should have had."""

import json

import chat_serving
import pytest
from parser_texts import joined, read
from parser_turns import full, join, recorded, stream
from vllm.entrypoints.openai.engine.protocol import DeltaMessage, DeltaToolCall
from vllm.parser import deltas
from vllm.parser.chat_format.muse_turn import MARKERS
from vllm.parser.chat_format.turn_piece import TurnMode

BEAM, MUSE = recorded("beam_parse"), recorded("muse_parse")
CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
PLAIN = TurnMode(fragments=False)
BOTH = [pytest.param(TurnMode(), id="stream"), pytest.param(PLAIN, id="plain")]


def muse_call(tool, parameters, recipient=None):
    tags = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in parameters.items())
    return (
        f" to={recipient or tool}<|message|><atem:function_calls>\n"
        f'<atem:invoke name="{tool}">\n{tags}</atem:invoke>\n</atem:function_calls>'
    )


def beam_call(tool, parameters):
    tags = "".join(f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>\n' for key, value in parameters.items())
    return f" to={tool}{CALL}{tags}"


def calls_of(name, text, mode=PLAIN, prompt=None):
    return [(tool, json.loads(arguments)) for tool, arguments in joined(read(name, list(text), mode, prompt))[2]]


def usual_cases(data, *skipped):
    """Recorded cases with both parsers and an ordinary request, except those with a part of `skipped` in their name."""
    for case in data["cases"]:
        options = case["options"]
        usual = not options["request"] and options["reasoning_parser"] and options["tool_parser"]
        if usual and not any(part in case["name"] for part in skipped):
            yield case["template"] or "muse", case


def test_cut_anywhere_shows_no_part_of_a_marker():
    """Half markers came through on cut or split output (Muse)."""
    halves = {marker[:size] for marker in MARKERS for size in range(1, len(marker))}
    for name, case in usual_cases(MUSE, "long"):
        for end in range(len(case["text"])):
            reasoning, content, calls = joined(read(name, [case["text"][:end]], PLAIN, case["prompt"]))
            for shown in (reasoning, content, *(arguments for _, arguments in calls)):
                assert not any(marker in shown for marker in MARKERS), case["name"]
                assert not any(shown.endswith(half) for half in halves), (case["name"], end)


def test_cut_inside_the_first_tag_of_an_unframed_call_shows_no_part_of_it():
    """Output that begins with the tags, without a header (Muse)."""
    for tag in ("<atem:function_calls>", '\n<atem:invoke name="write_file">'):
        for end in range(1, len(tag)):
            for pieces in ([tag[:end]], list(tag[:end])):
                assert joined(read("muse", pieces))[1] == "", (tag[:end], pieces)
    assert joined(read("muse", ["<atemporal"]))[1] == "<atemporal"


def test_cut_inside_a_tag_streams_no_part_of_it():
    """The same with the tags of a call, in what was streamed of its arguments (Muse)."""
    text = muse_call("set_alarm", {"label": "wake up", "hour": 7, "ratio": 0.5}, "alarm")
    for end in range(len(text)):
        for pieces in ([text[:end]], list(text[:end])):
            for _, arguments in joined(read("muse", pieces))[2]:
                assert "<" not in arguments, (end, arguments)
                assert '"hour": "' not in arguments, (end, arguments)
    # What the model wrote itself is text, also if it looks like half a tag.
    text = ' to=x<|message|><atem:invoke name="write_file"><atem:parameter name="path">a</atem<|eot|>'
    assert joined(read("muse", list(text)))[2] == [("write_file", '{"path": "a</atem"}')]


@pytest.mark.parametrize("mode", BOTH)
def test_json_text_in_a_string_parameter_stays_text(mode):
    """String parameters were JSON-decoded: JSON and JSON-lines files broke."""
    lines = '{"a":1}\n{"b":2}'
    for body in ('{"a":1}', lines, "[1]", "12", "null", "true", '"quoted"'):
        wanted = [("write_file", {"path": "x", "content": body})]
        assert calls_of("muse", muse_call("write_file", {"path": "x", "content": body}), mode) == wanted
        assert calls_of("T1", beam_call("write_file", {"path": "x", "content": body}), mode) == wanted


@pytest.mark.parametrize("mode", BOTH)
def test_unknown_tool_keeps_its_arguments(mode):
    """A parameter name was glued to the tool name and the arguments were empty."""
    assert calls_of("muse", muse_call("other.fn", {"x": "y"}), mode) == [("other.fn", {"x": "y"})]
    assert calls_of("T1", beam_call("other.fn", {"x": "y"}), mode) == [("other.fn", {"x": "y"})]
    assert (
        calls_of("muse", ' to=f<|message|><atem:invoke><atem:parameter name="x">1</atem:parameter></atem:invoke>') == []
    )


@pytest.mark.parametrize("mode", BOTH)
def test_call_without_thinking_first(mode):
    """A turn that opens with a call failed to parse, or leaked as text."""
    for name, text in (
        ("muse", muse_call("get_weather.get_weather", {"city": "Paris"}) + "<|eot|>"),
        ("T1", beam_call("get_weather", {"city": "Paris"}) + "<|call|>"),
    ):
        reasoning, content, calls = joined(read(name, list(text), mode))
        assert (reasoning, content, len(calls)) == ("", "", 1)
        assert json.loads(calls[0][1]) == {"city": "Paris"}


@pytest.mark.parametrize("mode", BOTH)
def test_closer_inside_a_value_does_not_eat_the_next_call(mode):
    first, second = {"path": "a", "content": "</atem:invoke> ends a call"}, {"city": "Rome"}
    text = muse_call("write_file", first) + "<|eom|><|start|>assistant" + muse_call("get_weather", second) + "<|eot|>"
    assert calls_of("muse", text, mode) == [("write_file", first), ("get_weather", second)]
    first = {"path": "a", "content": "inline </rfl:parameter> is text"}
    text = beam_call("write_file", first) + "<|end|><|start|>assistant" + beam_call("get_weather", second) + "<|call|>"
    assert calls_of("T1", text, mode) == [("write_file", first), ("get_weather", second)]


@pytest.mark.parametrize("mode", BOTH)
def test_missing_closer_before_the_next_call_loses_neither(mode):
    text = ' to=x<|message|><atem:invoke name="get_weather"><atem:parameter name="city">Paris</atem:invoke>\n' + (
        '<atem:invoke name="noop"></atem:invoke>'
    )
    calls = calls_of("muse", text, mode)
    assert [name for name, _ in calls] == ["get_weather", "noop"]
    assert calls[0][1] == ({"city": "Paris"} if mode.fragments else {})


@pytest.mark.parametrize("mode", BOTH)
def test_channel_switch_without_end_keeps_the_call(mode):
    text = " to=self<|message|>thinking" + muse_call("noop", {})
    reasoning, content, calls = joined(read("muse", list(text), mode))
    assert (reasoning, content, calls) == ("thinking ", "", [("noop", "{}")])


@pytest.mark.parametrize("mode", BOTH)
def test_recipient_without_a_space_before_it(mode):
    """Its message goes where it says; what was text until then stays text."""
    head = " to=self<|message|>thinkrto="
    for size in (1, 2, 3, 4, 5, 8, 999):
        for tail, wanted in (
            ("user<|message|>x<|eot|>", ("thinkrto=user", "x", [])),
            (
                "noop<|message|>" + muse_call("noop", {}).split("<|message|>")[1],
                ("thinkrto=noop", "", [("noop", "{}")]),
            ),
            ("w" * 70 + "<|message|>x", ("thinkrto=" + "w" * 70 + "x", "", [])),
        ):
            text = head + tail
            chunks = [text[at : at + size] for at in range(0, len(text), size)]
            assert joined(read("muse", chunks, mode)) == wanted


@pytest.mark.parametrize("closer", ["<|return|>", "<|end|>", "<|call|>", ""])
def test_missing_or_other_terminator_keeps_the_answer(closer):
    """A stop on the call token inside an answer must neither show the marker nor drop the answer."""
    template = {**BEAM["templates"]["T1"], "fields": {**BEAM["templates"]["T1"]["fields"]}}
    template["fields"]["content"] = {**template["fields"]["content"], "close": ["<|return|>", "<|end|>", "<|call|>"]}
    data = {**BEAM, "templates": {"T1": template}}
    case = {**BEAM["cases"][0], "template": "T1", "text": f"<|channel|>final<|message|>Done.{closer}"}
    assert full(data, case)["content"] == "Done."
    assert join(stream(data, case, list(case["text"])))["content"] == "Done."


@pytest.mark.parametrize("data", [BEAM, MUSE], ids=["beam", "muse"])
def test_plain_arguments_are_json_wherever_the_output_is_cut(data):
    """A stop by length shipped broken JSON: a full parse gives valid arguments or no call."""
    for name, case in usual_cases(data, "long"):
        for end in range(len(case["text"])):
            for _, arguments in joined(read(name, [case["text"][:end]], PLAIN, case["prompt"]))[2]:
                assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("mode", BOTH)
def test_text_then_call_returns_both(mode):
    muse = " to=user<|message|>Hello.<|eom|><|start|>assistant" + muse_call("noop", {}) + "<|eot|>"
    beam = "<|channel|>final<|message|>Hello.<|end|><|start|>assistant" + beam_call("noop", {}) + "<|call|>"
    for name, text in (("muse", muse), ("T1", beam)):
        assert joined(read(name, list(text), mode)) == ("", "Hello.", [("noop", "{}")])


@pytest.mark.parametrize("mode", BOTH)
def test_a_file_about_the_format_itself(mode):
    """A literal parameter closer inside a value truncated it."""
    body = (
        "# Format\nA value ends with </rfl:parameter> after a newline.\nCalls use <rfl:parameter name=... and to=NAME."
    )
    wanted = {"path": "format.md", "content": body}
    assert calls_of("T1", beam_call("write_file", wanted), mode) == [("write_file", wanted)]
    body = "# Format\n<atem:invoke name=x> ... </atem:invoke>\n</atem:function_calls>\nmore text"
    wanted = {"path": "format.md", "content": body}
    assert calls_of("muse", muse_call("write_file", wanted), mode) == [("write_file", wanted)]


@pytest.mark.parametrize("data", [BEAM, MUSE], ids=["beam", "muse"])
def test_streaming_equals_plain_after_tool_results(data):
    """Reasoning leaked only when streaming, in the round after a tool result."""
    beam = "<|start|>tool<|message|>5 degrees<|end|><|start|>assistant"
    muse = '<|start|>tool w<|message|><tool_output name="w">\n5\n</tool_output><|eot|><|start|>assistant'
    prompt = beam if data is BEAM else muse
    for case in data["cases"]:
        if case["name"] in ("think_then_final", "self_then_user", "self_then_call"):
            after = {**case, "prompt": case["prompt"] + prompt}
            assert join(stream(data, after, list(case["text"]))) == full(data, after) == case["expected"]


def test_call_after_a_very_long_turn():
    """Tool calls failed near 200,000 tokens."""
    thinking = "step by step, " * 60_000
    text = f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant" + beam_call("noop", {}) + "<|call|>"
    chunks = [text[at : at + 40] for at in range(0, len(text), 40)]
    reasoning, _, calls = joined(read("T1", chunks))
    assert (len(reasoning), calls) == (len(thinking), [("noop", "{}")])


def test_reasoning_has_both_names():
    """Clients look for `reasoning` or for `reasoning_content`."""
    text = "<|channel|>analysis<|message|>Why.<|end|><|start|>assistant<|channel|>final<|message|>So."
    deltas = [chunk["choices"][0]["delta"] for chunk in chat_serving.stream(text, "stop")]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == "Why."
    assert not any("reasoning_content" in delta for delta in deltas if delta.get("content"))
    message = chat_serving.full(text, "stop").message.model_dump()
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("Why.", "Why.", "So.")


def test_deltas_are_those_of_the_constructors():
    """Deltas are made without validation; nothing of them may differ from validated ones."""
    pairs = [
        (deltas.content("é"), DeltaMessage(content="é")),
        (deltas.reasoning("r"), DeltaMessage(reasoning="r", reasoning_content="r")),
        (deltas.fragment(1, "x"), DeltaMessage(tool_calls=[DeltaToolCall(index=1, function={"arguments": "x"})])),
        (
            deltas.message("", "", [deltas.call_start(0, "i", "f", "")]),
            DeltaMessage(
                tool_calls=[
                    DeltaToolCall(index=0, id="i", type="function", function={"name": "f", "arguments": ""}),
                ]
            ),
        ),
    ]
    for made, validated in pairs:
        assert made == validated
        assert made.model_fields_set == validated.model_fields_set
        assert made.model_dump_json(exclude_unset=True) == validated.model_dump_json(exclude_unset=True)
    assert deltas.message("", "", []) is None
