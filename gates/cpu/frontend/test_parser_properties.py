# SPDX-License-Identifier: Apache-2.0
"""What holds for any output, valid or not: chunks do not matter, fragments only grow, nothing leaks, nothing
crashes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_texts import FORMATS, PROPERTIES, TEMPLATES, cuts, is_json, joined, outputs, read
from vllm.parser.chat_format.muse_turn import MARKERS
from vllm.parser.chat_format.turn_piece import TurnMode

WHOLE = TurnMode(fragments=False)
EXAMPLES = settings(max_examples=150, deadline=None)


@pytest.mark.parametrize("name", FORMATS)
def test_chunks_do_not_matter(name):
    @EXAMPLES
    @given(cuts(outputs(name)), st.booleans(), st.booleans(), st.booleans())
    def check(text_and_chunks, reasoning, tools, fragments):
        text, chunks = text_and_chunks
        mode = TurnMode(reasoning, tools, fragments)
        assert joined(read(name, chunks, mode)) == joined(read(name, [text], mode))
        assert joined(read(name, list(text), mode)) == joined(read(name, [text], mode))

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_streamed_calls_agree_with_the_full_parse(name):
    """Text is equal; names are equal; arguments of the full parse are strict JSON, and the stream's are either the
    same, or differ in a way that is listed: a repeated key, or a last value without closer."""

    @EXAMPLES
    @given(outputs(name))
    def check(text):
        *words, streamed = joined(read(name, list(text)))
        *plain_words, plain = joined(read(name, [text], WHOLE))
        assert words == plain_words
        assert [call for call, _ in streamed] == [call for call, _ in plain]
        for index, ((_, sent), (_, parsed)) in enumerate(zip(streamed, plain, strict=True)):
            assert is_json(parsed), parsed
            sent.encode()
            if sent == parsed:
                continue
            if not is_json(sent):
                assert index == len(plain) - 1, "only the last call can be cut"
                continue
            extra = json.loads(sent)
            assert all(extra.get(key) == value for key, value in json.loads(parsed).items()) or text.count('name="') > 1

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_a_longer_output_only_adds(name):
    """What was sent before is a prefix of what is sent in the end, at every character."""

    @EXAMPLES
    @given(outputs(name))
    def check(text):
        pieces = read(name, list(text))
        final = joined(pieces)
        for end in range(0, len(pieces), 7):
            reasoning, content, calls = joined(pieces[:end])
            assert final[0].startswith(reasoning)
            assert final[1].startswith(content)
            for (call, arguments), (final_call, final_arguments) in zip(calls, final[2], strict=False):
                assert call == final_call
                assert final_arguments.startswith(arguments)

    check()


@EXAMPLES
@given(outputs("muse"), st.sampled_from([marker[:size] for marker in MARKERS for size in range(1, len(marker))]))
def test_muse_shows_no_marker_and_no_part_of_one_at_the_end(text, half):
    text += "\n"
    reasoning, content, calls = joined(read("muse", list(text)))
    assert not any(marker in shown for shown in (reasoning, content) for marker in MARKERS)
    assert joined(read("muse", list(text + half))) == (reasoning, content, calls)


@EXAMPLES
@given(outputs("T1"))
def test_beam_answer_never_holds_its_own_closer(text):
    reasoning, content, calls = joined(read("T1", list(text)))
    closers = TEMPLATES["T1"].content.close.literals
    assert not any(closer in content for closer in closers)
    assert "<|end|><|start|>assistant" not in reasoning
    assert not any(closer in arguments for _, arguments in calls for closer in ("<|call|>",))


_VALUES = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@EXAMPLES
@given(_VALUES, _VALUES)
def test_beam_arguments_come_through_without_loss(path, body):
    if any(mark in value for value in (path, body) for mark in ("rfl:parameter", "<|")):
        return
    text = (
        " to=write_file<|channel|>analysis <|constrain|>xml<|message|>"
        f'<rfl:parameter name="path">\n{path}\n</rfl:parameter>\n'
        f'<rfl:parameter name="content">\n{body}\n</rfl:parameter><|call|>'
    )
    for mode in (WHOLE, TurnMode()):
        _, _, calls = joined(read("T1", list(text), mode))
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [
            ("write_file", {"path": path, "content": body})
        ]


@EXAMPLES
@given(_VALUES, _VALUES)
def test_muse_arguments_come_through_without_loss(path, body):
    if any(mark in value for value in (path, body) for mark in ("atem:", "<|")):
        return
    text = (
        ' to=write_file<|message|><atem:function_calls>\n<atem:invoke name="write_file">\n'
        f'<atem:parameter name="path">{path}</atem:parameter>\n<atem:parameter name="content">{body}</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>"
    )
    for mode in (WHOLE, TurnMode()):
        _, _, calls = joined(read("muse", list(text), mode))
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [
            ("write_file", {"path": path, "content": body})
        ]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@EXAMPLES
@given(
    st.dictionaries(st.text(max_size=4), _JSON, max_size=3), st.lists(st.text(max_size=5), max_size=3), st.integers()
)
def test_typed_values_keep_their_type(filters, tags, days):
    """A value written as its JSON text comes back as that value, in both formats."""
    if "<" in json.dumps([filters, tags]):
        return
    assert set(PROPERTIES["search"]) >= {"filters", "tags"}
    written = {"filters": json.dumps(filters), "tags": json.dumps(tags)}
    beam = "".join(f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>\n' for key, value in written.items())
    muse = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>' for key, value in written.items())
    texts = {
        "T1": f" to=search<|channel|>analysis <|constrain|>xml<|message|>{beam}<|call|>",
        "muse": f' to=search<|message|><atem:invoke name="search">{muse}</atem:invoke><|eot|>',
    }
    for name, text in texts.items():
        for mode in (WHOLE, TurnMode()):
            ((_, arguments),) = joined(read(name, list(text), mode))[2]
            assert json.loads(arguments) == {"filters": filters, "tags": tags}
    weather = f'<rfl:parameter name="days">\n{days}\n</rfl:parameter>'
    text = f" to=get_weather<|channel|>analysis <|constrain|>xml<|message|>{weather}"
    assert json.loads(joined(read("T1", list(text)))[2][0][1]) == {"days": days}


def test_a_tag_inside_one_that_never_ends_is_found_however_it_is_cut():
    """An opener whose quote is out of step stays possible for as long as a delimiter may be; a real one follows it."""
    call = " to=search<|channel|>analysis <|constrain|>xml<|message|>"
    tag = '<rfl:parameter name="maybe">\nvalue\n</rfl:parameter>'
    for gap in (1, *range(470, 495, 4), 600, 2000):  # the bound falls into the second opener
        text = call + '<rfl:parameter name="' + "x" * gap + tag + "9" * 600 + "<|call|>"
        once = joined(read("T1", [text]))
        assert once[2] == [("search", '{"maybe": "value"}')], gap
        for size in (1, 7, 300):
            assert joined(read("T1", [text[at : at + size] for at in range(0, len(text), size)])) == once, (gap, size)
