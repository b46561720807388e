# SPDX-License-Identifier: Apache-2.0
"""Cost in counted characters, not in time: per character the same at 4 KB and at 1 MB, whatever the stream holds."""

import json

import pytest
from parser_texts import FORMATS, TEMPLATES, joined, read, reader
from vllm.parser.chat_format import muse_call, muse_turn, scanning
from vllm.parser.chat_format.delimiters import Delimiter
from vllm.parser.chat_format.tags import TagPattern
from vllm.parser.chat_format.turn_piece import TurnMode

SMALL, LARGE, CHUNK = 1 << 12, 1 << 20, 16
CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
FILE = f' to=write_file{CALL}<rfl:parameter name="content">\n'
MUSE_FILE = ' to=write_file<|message|><atem:invoke name="write_file"><atem:parameter name="content">'


class CountingPattern:
    """A compiled pattern that counts the characters it is asked to look at."""

    seen = 0

    def __init__(self, pattern):
        self._pattern = pattern

    def __getattr__(self, name):
        return getattr(self._pattern, name)

    def search(self, text, start=0, end=None, **options):
        end = len(text) if end is None else end
        match = self._pattern.search(text, start, end, **options)
        CountingPattern.seen += (match.end() if match else end) - start
        return match


class CountingWindow(scanning.Window):
    """A window that counts the characters copied when text is appended."""

    def append(self, piece):
        super().append(piece)
        CountingPattern.seen += len(self.text)


@pytest.fixture
def counted(monkeypatch):
    def watch(delimiter):
        monkeypatch.setitem(delimiter.__dict__, "pattern", CountingPattern(delimiter.pattern))

    found = [d for t in TEMPLATES.values() for f in t.fields.values() for d in (f.open, f.close) if d is not None]
    for template in TEMPLATES.values():
        tags = TagPattern.of(template.tool_calls.tag_pattern)
        found += [tags.head, tags.tail]
    found += [d for listed in muse_call._WATCHED.values() for d in listed] + muse_turn._INSIDE + muse_turn._OUTSIDE
    for delimiter in {id(d): d for d in found}.values():
        assert isinstance(delimiter, Delimiter)
        watch(delimiter)
    for module in ("regions", "xml_call", "muse_call", "muse_turn"):
        monkeypatch.setattr(f"vllm.parser.chat_format.{module}.Window", CountingWindow)


def _cost(name, text, mode=TurnMode()):  # noqa: B008
    CountingPattern.seen = 0
    turn = reader(name, mode)
    for at in range(0, len(text), CHUNK):
        turn.feed(text[at : at + CHUNK])
    turn.finish()
    return CountingPattern.seen / len(text)


SHAPES = {
    "reasoning": ("T1", "<|channel|>analysis<|message|>", "Let me think about it. "),
    "reasoning with angles": ("T1", "<|channel|>analysis<|message|>", "a < b <| c "),
    "answer": ("T1", "<|channel|>final<|message|>", "The answer is 42.\n"),
    "string argument": ("T1", FILE, 'line = "x"\n'),
    "argument of half closers": ("T1", FILE, "\n</rfl:paramete"),
    "argument of newlines": ("T1", FILE, "\n"),
    "json argument": ("T1", f' to=search{CALL}<rfl:parameter name="filters">\n', '{"a": [1, 2]} '),
    "blank argument": ("T2", FILE.rstrip("\n"), "  \n"),
    "endless key": ("T1", f' to=f{CALL}<rfl:parameter name="', "k"),
    "openers without closers": ("T2", f" to=f{CALL}", '<rfl:parameter name="a">'),
    "outside every region": ("T1", "", "nothing here "),
    "endless header": ("T2", "", "to="),
    "many headers": ("T3", "", " to=x"),
    "muse reasoning": ("muse", " to=self<|message|>", "to the point, to= it "),
    "muse argument": ("muse", MUSE_FILE, "line < x\n"),
    "muse half closers": ("muse", MUSE_FILE, "</atem:paramete"),
    "muse lost closers": ("muse", MUSE_FILE, "</atem:invoke>  "),
    "muse blank after a lost closer": ("muse", MUSE_FILE + "</atem:invoke>", " "),
    "muse endless tag": ("muse", ' to=x<|message|><atem:invoke name="', "n"),
    "muse unframed": ("muse", "", "to= "),
    "muse json": (
        "muse",
        ' to=search<|message|><atem:invoke name="search"><atem:parameter name="filters">',
        '{"a": 1} ',
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_cost_per_character_does_not_grow(counted, shape):
    name, head, unit = SHAPES[shape]
    small = _cost(name, head + unit * (SMALL // len(unit)))
    large = _cost(name, head + unit * (LARGE // len(unit)))
    assert large < 2 * small + 1, f"{small:.1f} looks a character at 4 KB, {large:.1f} at 1 MB"


@pytest.mark.parametrize("name", FORMATS)
def test_whole_text_at_once_is_linear_too(counted, name):
    for head, unit in ((" to=", "to="), ("<|channel|>final<|message|>", "x < "), (" to=user<|message|>", "to= <|e ")):
        costs = []
        for size in (SMALL, LARGE):
            CountingPattern.seen = 0
            read(name, [head + unit * (size // len(unit))], TurnMode(fragments=False))
            costs.append(CountingPattern.seen / size)
        assert costs[1] < 2 * costs[0] + 1


def test_the_count_sees_a_quadratic_parser(counted, monkeypatch):
    """The control: without the bound on regex delimiters the endless header costs more the longer it is."""
    monkeypatch.setattr(Delimiter, "too_long", lambda *args: False)
    monkeypatch.setattr(scanning, "_SPAN", 1 << 30)
    name, head, unit = SHAPES["endless header"]
    small, large = (_cost(name, head + unit * (size // len(unit))) for size in (1 << 10, 1 << 13))
    assert large > 4 * small


def test_memory_does_not_keep_what_was_sent():
    turn = reader("T1")
    turn.feed(FILE)
    for _ in range(10_000):
        turn.feed("0123456789\n\n<")
    assert len(turn._regions._window.text) < 4096
    assert len(turn._call._window.text) < 4096


def test_megabyte_argument_arrives_whole():
    body = "".join(f'{n}: "quoted" \\ tab\t<b>\n' for n in range(40_000))
    text = f"{FILE}{body}\n</rfl:parameter><|call|>"
    pieces = read("T1", [text[at : at + 64] for at in range(0, len(text), 64)])
    ((name, arguments),) = joined(pieces)[2]
    assert (name, json.loads(arguments)) == ("write_file", {"content": body})
    assert sum(1 for piece in pieces if piece.calls) > 10_000
