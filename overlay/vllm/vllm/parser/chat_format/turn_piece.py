# SPDX-License-Identifier: Apache-2.0
"""What parsing a turn yields, step by step, and how a request wants it."""

from __future__ import annotations

from dataclasses import dataclass, field

# Where text of a turn goes.
REASONING, CONTENT, ARGUMENTS = "reasoning", "content", "arguments"


@dataclass(slots=True)
class CallPiece:
    """Part of one tool call. index: its place among the turn's calls. name: only in the call's first piece."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class TurnPiece:
    """What one step of parsing adds to the turn."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[CallPiece] = field(default_factory=list)

    def add_call(self, index: int, name: str | None, arguments: str) -> None:
        """Append a piece, joined to the previous one if it continues the same call."""
        if name is None and self.calls and self.calls[-1].index == index:
            self.calls[-1].arguments += arguments
        else:
            self.calls.append(CallPiece(index, name, arguments))

    def extend(self, later: TurnPiece) -> None:
        """Append what a later step added."""
        self.reasoning += later.reasoning
        self.content += later.content
        for call in later.calls:
            self.add_call(call.index, call.name, call.arguments)


@dataclass(frozen=True)
class TurnMode:
    """How a request wants its turn. reasoning: False routes thinking into the content. tools: False passes calls
    through as content, markers included. fragments: send a call's arguments while they are written."""

    reasoning: bool = True
    tools: bool = True
    fragments: bool = True
