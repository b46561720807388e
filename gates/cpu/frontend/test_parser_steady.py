# SPDX-License-Identifier: Apache-2.0
"""What is not read at once, because it is plain text or an incomplete delimiter, is sent when it would have been."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parser_texts import FORMATS, cuts, outputs, reader
from vllm.parser.chat_format.pattern_ends import endings, ends_once
from vllm.parser.chat_format.scanning import watch_for
from vllm.parser.chat_format.steady import SteadyTurn
from vllm.parser.chat_format.turn_piece import TurnMode

CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
TURNS = {
    "T1": f"<|channel|>analysis<|message|>Why < so?<|end|><|start|>assistant to=get_weather{CALL}"
    '<rfl:parameter name="city">\nParis\n\n</rfl:param\n</rfl:parameter>\n<rfl:parameter name="days">\n3\n'
    f"</rfl:parameter><|end|><|start|>assistant to=noop{CALL}<|call|>",
    "muse": " to=self<|message|>Why < so?<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
    '<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>',
}


def sent(turn, chunks):
    """What each chunk and the end add."""
    pieces = [turn.feed(chunk) for chunk in chunks] + [turn.finish()]
    return [("".join(piece.reasoning), "".join(piece.content), piece.calls) for piece in pieces]


def read_at_once(name, chunks, mode=TurnMode()):  # noqa: B008
    turn = reader(name, mode)
    turn._steady = lambda: None
    return sent(turn, chunks)


@pytest.mark.parametrize("name", FORMATS)
def test_every_chunk_sends_what_reading_it_sends(name):
    @settings(max_examples=100, deadline=None)
    @given(cuts(outputs(name)), st.booleans(), st.booleans(), st.booleans())
    def check(text_and_chunks, reasoning, tools, fragments):
        text, chunks = text_and_chunks
        mode = TurnMode(reasoning, tools, fragments)
        for pieces in (chunks, list(text)):
            assert sent(reader(name, mode), pieces) == read_at_once(name, pieces, mode)

    check()


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("size", range(1, 9))
def test_a_usual_turn_by_chunks(name, size):
    text = TURNS[name]
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert sent(reader(name), chunks) == read_at_once(name, chunks)


@pytest.mark.parametrize("body", ["<", "<<", "\n<", "a<", "\n"])
@pytest.mark.parametrize("name", FORMATS)
def test_two_delimiters_that_might_begin_next_to_each_other(name, body):
    """Found by fuzzing: a value without its closer, whose last character might have begun it."""
    opener = '<atem:invoke name="search"><atem:parameter name="filters">' if name == "muse" else ""
    head = f" to=search<|message|>{opener}" if name == "muse" else f' to=search{CALL}<rfl:parameter name="filters">\n'
    text = head + body + ("<|eom|>" if name == "muse" else "<|end|><|start|>assistant")
    assert sent(reader(name), list(text)) == read_at_once(name, list(text))


def test_a_wait_that_forgets_what_was_read_is_seen(monkeypatch):
    """The control: a delimiter whose first half was read before the wait would be sent late."""
    plain = SteadyTurn.plain

    def forgetful(self, text):
        self._behind = ""
        return plain(self, text)

    monkeypatch.setattr(SteadyTurn, "plain", forgetful)
    assert sent(reader("T1"), list(TURNS["T1"])) != read_at_once("T1", list(TURNS["T1"]))


def test_few_tokens_of_a_call_are_read(monkeypatch):
    """About one for each complete delimiter. The control reads each token of it."""
    read, seen = SteadyTurn.read, []
    monkeypatch.setattr(SteadyTurn, "read", lambda self, text: (seen.append(text), read(self, text))[1])
    for name, text in TURNS.items():
        chunks = [text[at : at + 4] for at in range(0, len(text), 4)]
        seen.clear()
        sent(reader(name), chunks)
        few = len(seen)
        with monkeypatch.context() as patch:
            patch.setattr(SteadyTurn, "plain", lambda self, text: None)
            seen.clear()
            sent(reader(name), chunks)
        assert 3 * few < len(chunks)
        assert len(seen) > 2 * few, (name, few, len(seen))


@pytest.mark.parametrize(
    ("pattern", "ends"),
    [
        (r" to=(?P<name>[^\s<]+)<\|message\|>", {"<|message|>"}),
        (r"x(?: xml)?!", {"x!", "x xml!"}),
        (r"a+(?:b|cd)", {"b", "cd"}),
        (r"a(?=b)", None),
        (r"a$", None),
        (r"a[bc]*", None),
        (r"(?i)ab", None),
        (r"(", None),
    ],
)
def test_endings(pattern, ends):
    assert endings(pattern) == ends


@pytest.mark.parametrize(
    ("pattern", "once"),
    [
        (r" to=(?P<name>[^\s<]+)<\|message\|>", True),
        (r'<p name="(?P<key>[^"]+)">\n', True),
        (r"(?:<s>)? to=([a-z]+?)<(?:m|n)>", True),
        (r"to=(.+?)<m>", False),
        (r"to=(\S+)<m>", False),
        (r"to=([^<]+)(?:<m>|<m><n>)", False),
        (r"(?:a|aa)([^<]+)<", False),
        (r"to=([^<]+)", False),
        (r"to=([^<]+)(?=<m>)", False),
        (r"a([^<]+)<([^>]+)>", False),
        (r"to=([\w<]+)<", False),
    ],
)
def test_ends_once(pattern, once):
    assert ends_once(pattern) is once


def test_halves_hold_no_complete_delimiter():
    watch = watch_for(frozenset(["<|end|>", "<|end|><|start|>", "\n</p>"]))
    assert {"<", "<|", "<|end|", "\n", "\n</p"} <= watch.halves
    assert not {"<|end|>", "<|end|><", "\n</p>"} & watch.halves
