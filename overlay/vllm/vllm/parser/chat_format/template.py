# SPDX-License-Identifier: Apache-2.0
"""Response templates: the model repository's description of what its assistant turn looks like.

A template is a JSON object, kept under `response_template` in `tokenizer_config.json`. It names a start anchor (the
text that opens an assistant message) and fields; each field has an opener, closers and a kind of content.
`load_template` checks one and compiles it; nothing about a model is known here.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from vllm.parser.chat_format import content
from vllm.parser.chat_format.delimiters import SEARCH_SECONDS, Delimiter, ResponseTemplateError, compile_delimiter

logger = logging.getLogger(__name__)

THINKING = "thinking"
CONTENT = "content"
TOOL_CALLS = "tool_calls"
SERVED_FIELDS = (THINKING, CONTENT, TOOL_CALLS)

_TEMPLATE_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_FIELD_KEYS = frozenset(
    [
        "open",
        "open_pattern",
        "close",
        "close_pattern",
        "content",
        "content_args",
        "repeats",
        "join",
        "optional",
        "transform",
        "transform_each",
    ]
)


@dataclass(frozen=True)
class TemplateField:
    """One field. `open` is None for the implicit field, which takes all text outside the others; `close` None means
    that the field runs to the end of the turn. `content` names a kind in `content.KINDS`."""

    name: str
    open: Delimiter | None
    close: Delimiter | None
    content: str = "text"
    content_args: Mapping[str, Any] = None  # type: ignore[assignment]
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False

    @property
    def tag_pattern(self) -> str | None:
        """The regex of one parameter (groups `key` and `value`), for content `xml-inline`; None for other kinds."""
        return self.content_args["tag_pattern"] if self.content == "xml-inline" else None


@dataclass(frozen=True)
class ResponseTemplate:
    """A checked, compiled template. Immutable and shared between requests."""

    fields: Mapping[str, TemplateField]
    anchor: Delimiter
    defaults: Mapping[str, Any]
    implicit: str | None

    @property
    def thinking(self) -> TemplateField | None:
        return self.fields.get(THINKING)

    @property
    def content(self) -> TemplateField | None:
        return self.fields.get(CONTENT)

    @property
    def tool_calls(self) -> TemplateField | None:
        return self.fields.get(TOOL_CALLS)

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """The fixed strings that open an assistant message; empty if the anchor's regex is not a choice of literals."""
        return self.anchor.strings() or ()

    @cached_property
    def openers(self) -> tuple[TemplateField, ...]:
        """The fields with an opener, in the template's order."""
        return tuple(field for field in self.fields.values() if field.open is not None)

    @cached_property
    def opener_endings(self) -> frozenset[str] | None:
        """Strings one of which every opener ends with; None if that is not known."""
        found = [field.open.endings for field in self.openers]  # type: ignore[union-attr]
        return None if None in found else frozenset().union(*found)

    def after_last_anchor(self, prompt: str) -> str:
        """What follows the last start anchor in `prompt`; the whole prompt if it holds none."""
        end = self._last_anchor_end(prompt)
        return prompt if end is None else prompt[end:]

    def has_anchor(self, text: str) -> bool:
        """Whether `text` holds a start anchor."""
        return self._last_anchor_end(text) is not None

    def starts_message(self, prompt: str) -> bool:
        """Whether `prompt` ends with a start anchor, so that output begins a fresh assistant message."""
        return self._last_anchor_end(prompt) == len(prompt) > 0

    def _last_anchor_end(self, prompt: str) -> int | None:
        if self.anchor.literals and len(self.anchor.literals) == 1:
            literal = self.anchor.literals[0]
            # Matches are found left to right without overlap; only an anchor that overlaps itself needs the full scan.
            if literal[1:].find(literal[0]) < 0:
                start = prompt.rfind(literal)
                return None if start < 0 else start + len(literal)
        end = None
        try:
            for match in self.anchor.pattern.finditer(prompt, timeout=SEARCH_SECONDS):
                end = match.end()
        except TimeoutError:
            logger.error("The start anchor of the response template takes too long on a prompt; it is not looked for.")
            return None
        return end


def load_template(spec: Any, where: str = "response_template") -> ResponseTemplate:
    """Check and compile a template. Raises ResponseTemplateError whose message names the field at fault."""
    if not isinstance(spec, dict):
        raise ResponseTemplateError(where, f"must be an object, got {type(spec).__name__}")
    version = spec.get("version", 1)
    if isinstance(version, bool) or version != 1:
        raise ResponseTemplateError(f"{where}.version", f"only version 1 is supported, got {version!r}")
    _no_unknown_keys(where, spec, _TEMPLATE_KEYS)
    defaults = spec.get("defaults", {})
    if not isinstance(defaults, dict):
        raise ResponseTemplateError(f"{where}.defaults", f"must be an object, got {type(defaults).__name__}")
    fields_spec = spec.get("fields", {})
    if not isinstance(fields_spec, dict) or not fields_spec:
        raise ResponseTemplateError(f"{where}.fields", "must be an object with at least one field")
    try:
        fields = {name: _load_field(f"{where}.fields.{name}", name, raw) for name, raw in fields_spec.items()}
    except RecursionError as error:
        raise ResponseTemplateError(f"{where}.fields", "nest too deeply") from error
    implicit = [name for name, field in fields.items() if field.open is None]
    if len(implicit) > 1:
        raise ResponseTemplateError(f"{where}.fields", f"only one field may lack an opener, but {implicit} do")
    anchor = compile_delimiter(where, spec, "start_anchor", "start_anchor_pattern")
    if anchor is None:
        raise ResponseTemplateError(where, "needs 'start_anchor' or 'start_anchor_pattern'")
    return ResponseTemplate(fields, anchor, copy.deepcopy(defaults), implicit[0] if implicit else None)


def load_served_template(spec: Any, where: str = "response_template") -> ResponseTemplate:
    """`load_template` in the form the API server parses with: only the fields it can route, none of them required, and
    unmarked text read as the answer where the template has openers everywhere and no answer field."""
    template = load_template(spec, where)
    if unknown := sorted(set(template.fields) - set(SERVED_FIELDS)):
        raise ResponseTemplateError(
            f"{where}.fields.{unknown[0]}", f"cannot be served; fields are {list(SERVED_FIELDS)}"
        )
    if extra := sorted(set(template.defaults) - {"role"}):
        raise ResponseTemplateError(f"{where}.defaults.{extra[0]}", "cannot be served; only 'role' may have a default")
    for name in (THINKING, CONTENT):
        field = template.fields.get(name)
        if field is None:
            continue
        for key, found, wanted in (
            ("content", field.content, "text"),
            ("transform", field.transform, None),
            ("join", field.join, None),
        ):
            if found != wanted:
                raise ResponseTemplateError(
                    f"{where}.fields.{name}.{key}", f"{found!r} cannot be streamed as plain text"
                )
    fields = {name: replace(field, optional=True) for name, field in template.fields.items()}
    implicit = template.implicit
    if CONTENT not in fields and implicit is None:
        fields[CONTENT] = TemplateField(CONTENT, None, None, content_args={})
        implicit = CONTENT
    return replace(template, fields=fields, implicit=implicit)


def _load_field(where: str, name: str, spec: Any) -> TemplateField:
    if not isinstance(spec, dict):
        raise ResponseTemplateError(where, f"must be an object, got {type(spec).__name__}")
    _no_unknown_keys(where, spec, _FIELD_KEYS)
    for key in ("repeats", "optional", "transform_each"):
        if not isinstance(spec.get(key, False), bool):
            raise ResponseTemplateError(f"{where}.{key}", f"must be true or false, got {spec[key]!r}")
    join = spec.get("join")
    if join is not None and not isinstance(join, str):
        raise ResponseTemplateError(f"{where}.join", f"must be a string, got {type(join).__name__}")
    if join is not None and not spec.get("repeats", False):
        raise ResponseTemplateError(f"{where}.join", "needs 'repeats': true")
    transform = spec.get("transform")
    if spec.get("transform_each", False) and transform is None:
        raise ResponseTemplateError(f"{where}.transform_each", "is set, but there is no 'transform'")
    opener = compile_delimiter(where, spec, "open", "open_pattern")
    closer = compile_delimiter(where, spec, "close", "close_pattern")
    groups = {group for delimiter in (opener, closer) if delimiter for group in delimiter.pattern.groupindex}
    if transform is None and groups:
        raise ResponseTemplateError(
            where, f"named groups {sorted(groups)} reach the result only through a 'transform', which is missing"
        )
    content.check_transform(f"{where}.transform", transform)
    kind, args = spec.get("content", "text"), spec.get("content_args", {})
    content.check_kind(where, kind, args)
    return TemplateField(
        name=name,
        open=opener,
        close=closer,
        content=kind,
        content_args=copy.deepcopy(args),
        repeats=spec.get("repeats", False),
        join=join,
        optional=spec.get("optional", True),
        transform=copy.deepcopy(transform),
        transform_each=spec.get("transform_each", False),
    )


def _no_unknown_keys(where: str, spec: dict, known: frozenset) -> None:
    if unknown := sorted(map(str, set(spec) - known)):
        raise ResponseTemplateError(where, f"unknown keys {unknown}; known are {sorted(known)}")
