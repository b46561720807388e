# SPDX-License-Identifier: Apache-2.0
"""A Muse assistant turn: messages addressed to a recipient, split while they are generated.

    <|start|>assistant to=RECIPIENT<|message|>BODY<|eom|>   (the last one ends with <|eot|>)

`self` or no recipient is reasoning, `user` and `commentary` are the answer, `developer` is dropped, and anyone else is
a tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import regex
from vllm.parser.chat_format.delimiters import Delimiter
from vllm.parser.chat_format.muse_call import VALUE_ENDS, MuseCalls
from vllm.parser.chat_format.scanning import CONTEXT, Wait, Watch, Window, find, halves_of, wait_for
from vllm.parser.chat_format.steady import SteadyTurn
from vllm.parser.chat_format.turn_piece import ARGUMENTS, CONTENT, TurnMode
from vllm.parser.chat_format.turn_piece import REASONING as REASONING_PART

MESSAGE_START = "<|start|>assistant"
FRAMING = ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
# The tokenizer's own end is no part of the format, but ends the output all the same.
MARKERS = (*FRAMING, "<|end_of_text|>")
ENDS = MARKERS[2:]

REASONING, ANSWER, DROPPED, TOOL = "reasoning", "answer", "dropped", "tool"
_KINDS = {None: REASONING, "self": REASONING, "user": ANSWER, "commentary": ANSWER, "developer": DROPPED}

_HEADER = r"(?:to=(?P<recipient>[^\s<]+))?<\|message\|>"
# Between messages: the next header. Inside a message: its end, or a header that comes without one.
_OUTSIDE = [Delimiter(regex.compile(r"(?:<\|start\|>assistant\s*)?" + _HEADER), source=_HEADER, fixed_end=True)]
_INSIDE = [
    Delimiter(
        regex.compile(
            r"(?P<end><\|(?:eo[mt]|end_of_text)\|>)|(?P<start><\|start\|>)|(?:(?<=\s)to=(?P<recipient>[^\s<]+))?(?P<header><\|message\|>)"
        ),
        source=_HEADER,
        fixed_end=True,
    )
]
# What can begin a marker, a header without marker, or a tag.
_IN_TEXT = Watch(re.compile(r"<\Z|<\||(?:\s|\A)t(?:\Z|o(?:\Z|=))").search, halves_of(MARKERS))
_IN_VALUE = Watch(re.compile(r"<\Z|<[|/]|(?:\s|\A)t(?:\Z|o(?:\Z|=))").search, halves_of((*MARKERS, *VALUE_ENDS)))
# What ends a header, and what ends anything that matters between values; nothing does at the end of the wrapper's tags.
_HEADER_END = wait_for(frozenset(["<|message|>"]))
_TAG_END = Wait(re.compile(r"(?<!atem:function_calls)>").search, 0)
_GLUED = regex.compile(r"to=(?P<recipient>[^\s<]+)$")
_UNFRAMED_CALL = regex.compile(r"\s*<atem:(?:function_calls|invoke)[\s>]")
_MARKER = regex.compile("|".join(map(regex.escape, MARKERS)))
# Output that stopped inside its first header.
_HALF_HEADER = regex.compile(r"\s*(?:t(?:o(?:=[^\s<]*)?)?)?")
_HALF_MARKER = regex.compile("(?:" + "|".join(map(regex.escape, MARKERS)) + ")$")


def _begins_call(text: str) -> bool:
    """Whether `text` stops inside the first tag of a call."""
    match = _UNFRAMED_CALL.fullmatch(text, partial=True)
    return match is not None and match.partial


def kind_of(recipient: str | None) -> str:
    """Where a message to `recipient` goes."""
    return _KINDS.get(recipient, TOOL)


def open_message(prompt: str) -> str:
    """The part of a prompt that the model continues: what follows the last `<|start|>assistant`, or nothing if the last
    message is another role's."""
    _, mark, tail = prompt.rpartition("<|start|>")
    return tail.removeprefix("assistant") if mark and tail.startswith("assistant") else ""


class MuseTurn(SteadyTurn):
    """Reads one generated turn. `prefix` is the prompt's text. `feed` and `finish` return what is new (a TurnPiece)."""

    def __init__(self, prefix: str, properties: Mapping[str, Mapping[str, Any]], mode: TurnMode):
        super().__init__()
        self._properties, self._mode = properties, mode
        self._window = Window()
        self._kind: str | None = None
        self._calls: MuseCalls | None = None
        self._count = -1
        self._glued: str | None = None
        self._framed = False
        self._unframed: list[str] = []
        self._in_prompt = True
        self._pending: list[tuple[str | None, str]] = []
        self._prefix_end = 0
        if opened := open_message(prefix):
            self._prefix_end = len(opened)
            self._window.append(opened)
            self._process(final=False)
        self._in_prompt = False

    @property
    def kind(self) -> str | None:
        """Where the open message goes; None between messages."""
        return self._kind

    def _read(self, text: str) -> None:
        if self._pending:
            self._replay()
        self._window.append(text)
        self._process(final=False)

    def _finish(self) -> None:
        if self._window.base + len(self._window.text) == self._prefix_end:
            return
        self._process(final=True)
        if self._kind is not None:
            self._end_message("", complete=False)
        elif not self._framed:
            self._finish_unframed()

    def _steady(self) -> Watch | Wait | None:
        self._behind = self._window.text[self._window.pos :]
        if self._kind is None:
            return _HEADER_END
        if self._kind is DROPPED or (self._calls is not None and self._calls.between_values):
            return _TAG_END
        if not self._window.empty:
            return None
        if self._calls is not None:
            self.part, self.index, self._write = ARGUMENTS, self._count, self._calls.write
            return _IN_VALUE if self._write is not None else None
        self._write = None
        self.part = REASONING_PART if self._kind is REASONING and self._mode.reasoning else CONTENT
        return _IN_TEXT

    def _skip(self, count: int, last: str) -> None:
        self._window.skip(count, last)
        if self._calls is not None:
            self._calls.skip(count, last)

    def _process(self, final: bool) -> None:
        window = self._window
        while True:
            _, match, hold = find(_OUTSIDE if self._kind is None else _INSIDE, window, final)
            if match is None:
                self._advance(self._releasable(hold, final))
                return
            self._advance(match.start())
            if self._kind is None:
                window.pos = match.end()
                recipient, self._glued = match.group("recipient") or self._glued, None
                self._begin_message(recipient, self._visible(match.start(), match.end()))
            elif match.group("end"):
                window.pos = match.end()
                self._end_message(self._visible(match.start(), match.end()), complete=True)
            else:
                # The next message begins here; its header is read from outside, but for a recipient that the model
                # wrote without a space before it: that was text until now.
                before = max(0, match.start() - CONTEXT)
                glued = _GLUED.search(window.text, before, match.start()) if match.group("header") else None
                self._end_message("", complete=True)
                self._glued = glued.group("recipient") if glued and match.group("recipient") is None else None

    def _releasable(self, hold: int, final: bool) -> int:
        """Index up to which the text is certain not to be framing."""
        window = self._window
        if not final:
            # The space before a possible header goes with it, as long as it was not sent yet.
            if hold > window.pos and window.text.startswith("t", hold) and window.text[hold - 1].isspace():
                return hold - 1
            return hold
        half = _HALF_MARKER.search(window.text, window.pos, partial=True)
        return half.start() if half is not None else len(window.text)

    def _advance(self, end: int) -> None:
        window = self._window
        if end <= window.pos:
            return
        text, visible = window.text[window.pos : end], self._visible(window.pos, end)
        window.pos = end
        if self._kind is not None:
            self._body(text, visible)
        elif not self._framed and visible:
            self._unframed.append(visible)

    def _visible(self, start: int, end: int) -> str:
        return self._window.text[max(start, self._prefix_end - self._window.base) : end]

    def _begin_message(self, recipient: str | None, header: str) -> None:
        self._framed = True
        self._unframed = []
        self._kind = kind_of(recipient)
        if self._kind is TOOL:
            if self._mode.tools:
                self._calls = MuseCalls(self._properties, self._emit, self._mode.fragments)
            else:
                self._show(header)

    def _body(self, text: str, visible: str) -> None:
        if self._calls is not None:
            self._calls.feed(text)
        elif self._kind is REASONING and self._mode.reasoning:
            if visible:
                self._piece.reasoning.append(visible)
        elif self._kind is not DROPPED:
            self._show(visible)

    def _end_message(self, closer: str, complete: bool) -> None:
        if self._calls is not None:
            self._calls.finish(complete, self._cut)
            self._calls = None
        elif self._kind is TOOL:
            self._show(closer)
        self._kind = None
        if self._in_prompt:
            self._pending, self._count = [], -1

    def _show(self, text: str) -> None:
        if text:
            self._piece.content.append(text)

    def _emit(self, name: str | None, arguments: str) -> None:
        if self._in_prompt:
            self._pending.append((name, arguments))
            return
        if name is not None:
            self._count += 1
        self._piece.add_call(self._count, name, arguments)

    def _replay(self) -> None:
        """Send what the prompt already wrote of the call that the output continues."""
        pending, self._pending = self._pending, []
        for name, arguments in pending:
            self._emit(name, arguments)

    def _finish_unframed(self) -> None:
        """Output without any header: a call if it begins as one, else the answer; nothing if it is the start of a
        header or of a call's first tag."""
        text = _MARKER.sub("", "".join(self._unframed))
        text = text[: _HALF_MARKER.search(text, partial=True).start()]
        if _HALF_HEADER.fullmatch(text) or (self._mode.tools and _begins_call(text)):
            return
        if self._mode.tools and _UNFRAMED_CALL.match(text):
            calls = MuseCalls(self._properties, self._emit, self._mode.fragments)
            calls.feed(text)
            calls.finish(complete=False, cut=self._cut)
        else:
            self._show(text)
