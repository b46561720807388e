# SPDX-License-Identifier: Apache-2.0
"""Where reasoning ends, and how many tokens of a turn it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm.parser.chat_format.regions import RegionParser
from vllm.parser.chat_format.template import CONTENT, THINKING, TOOL_CALLS, ResponseTemplate, TemplateField


class _Events:
    """Records the regions of a turn."""

    def __init__(self) -> None:
        self.opened_fields: list[TemplateField] = []
        self.thinking_closed = False
        self.current: TemplateField | None = None

    def opened(self, field: TemplateField, captures: dict[str, str], visible: str, at: int) -> None:
        self.opened_fields.append(field)
        self.current = field

    def text(self, field: TemplateField, text: str, visible: str) -> None:
        pass

    def closed(self, field: TemplateField, visible: str, complete: bool, at: int) -> None:
        self.thinking_closed |= field.name == THINKING
        self.current = None


def reasoning_ended(template: ResponseTemplate, text: str, thinking_disabled: bool = False) -> bool:
    """Whether, after `text` (a prompt, or a prompt with output), reasoning is over: it was closed, or an answer or call
    began. Outside every region it has not begun yet, so the answer is `thinking_disabled`."""
    thinking = template.thinking
    if thinking is None:
        return True
    if thinking.repeats:
        return False
    events = _Events()
    parser = RegionParser(template, events, text)
    before = events.current
    if events.thinking_closed or (before is not None and before.name in (CONTENT, TOOL_CALLS)):
        return True
    # A delimiter at the very end may be waiting for the next character; NUL is in no delimiter and shows what it would
    # become.
    count = len(events.opened_fields)
    parser.feed("\0")
    for field in events.opened_fields[count:]:
        if field.open is not None:
            return field.name != THINKING
    if events.thinking_closed:
        return True
    return False if before is not None and before.name == THINKING else thinking_disabled


class ReasoningCounter:
    """Counts the tokens of one growing generation whose text is reasoning; delimiters do not count."""

    def __init__(self, template: ResponseTemplate, prefix: str):
        self._spans: list[tuple[int, int]] = []
        self._open: int | None = None
        self._ids: list[int] = []
        self._ends: list[int] = []
        self._parser = RegionParser(template, self, prefix)
        self._start = self._parser.length

    @property
    def tokens(self) -> int:
        """Tokens counted so far."""
        return len(self._ids)

    def continues(self, token_ids: Sequence[int]) -> bool:
        return list(token_ids[: len(self._ids)]) == self._ids

    def count(self, token_ids: Sequence[int], texts: Iterable[str]) -> int:
        """Reasoning tokens among `token_ids`, all tokens so far. texts: the text of each token not counted before."""
        new = list(texts)
        self._ids += token_ids[len(self._ids) :]
        end = self._ends[-1] if self._ends else self._start
        for text in new:
            end += len(text)
            self._ends.append(end)
        self._parser.feed("".join(new))
        # Text held back as a possible closer counts until the closer is certain.
        spans = self._spans if self._open is None else [*self._spans, (self._open, end + 1)]
        count, start, index = 0, self._start, 0
        for token_end in self._ends:
            while index < len(spans) and spans[index][1] <= start:
                index += 1
            count += index < len(spans) and spans[index][0] < token_end
            start = token_end
        return count

    # RegionHandler

    def opened(self, field: TemplateField, captures: dict[str, str], visible: str, at: int) -> None:
        if field.name == THINKING:
            self._open = at

    def text(self, field: TemplateField, text: str, visible: str) -> None:
        pass

    def closed(self, field: TemplateField, visible: str, complete: bool, at: int) -> None:
        if self._open is not None:
            self._spans.append((self._open, at))
            self._open = None
