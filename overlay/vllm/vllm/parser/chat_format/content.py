# SPDX-License-Identifier: Apache-2.0
"""The kinds of content a template field can have, and the transforms that reshape them.

Each kind turns the text of one region into a value: `text`, `int`, `float`, `bool`, `json`, `xml-inline` (shallow tags)
and `kv-lines` (one `key: value` a line). Parsing raises ValueError for text that does not fit; the region is then
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import regex
from vllm.parser.chat_format.delimiters import ResponseTemplateError, compile_pattern
from vllm.parser.chat_format.tags import TagPattern

_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")
# A JSON string, left alone, or a bare word before a colon.
_BARE_KEY = regex.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,]\s*)(?P<key>\w+)(?=\s*:)', regex.DOTALL)
# Custom-delimited strings are set aside under a mark that JSON cannot contain unescaped.
_MARK_OPEN, _MARK_CLOSE = "\x01", "\x02"


def parse(kind: str, text: str, args: Mapping[str, Any]) -> Any:
    """The value of a region's text. Raises ValueError if the text does not fit the kind."""
    try:
        return KINDS[kind](text, args)
    except RecursionError as error:
        raise ValueError(f"{kind}: nested too deeply") from error


def _text(text: str, args: Mapping[str, Any]) -> str:
    return text.strip() if args.get("strip", True) else text


def _int(text: str, args: Mapping[str, Any]) -> int:
    return int(_text(text, args))


def _float(text: str, args: Mapping[str, Any]) -> float:
    return float(_text(text, args))


def _bool(text: str, args: Mapping[str, Any]) -> bool:
    return _text(text, args).lower() in ("true", "1")


def _json(text: str, args: Mapping[str, Any]) -> Any:
    """JSON with the dialect options `unquoted_keys` (bare words before a colon), `string_delims` (pairs of markers
    around strings) and `allow_non_json` (fall back to the stripped text)."""
    delims = args.get("string_delims", [])
    if delims and (_MARK_OPEN in text or _MARK_CLOSE in text):
        raise ValueError("json: the text holds a control character reserved for string_delims")
    source, strings = text, []

    def set_aside(match: Any) -> str:
        strings.append(match.group(1))
        return f"{_MARK_OPEN}{len(strings) - 1}{_MARK_CLOSE}"

    for opener, closer in delims:
        source = regex.sub(
            regex.escape(opener) + r"(.*?)" + regex.escape(closer), set_aside, source, flags=regex.DOTALL
        )
    if args.get("unquoted_keys", False):
        source = _BARE_KEY.sub(lambda match: f'"{match["key"]}"' if match["key"] else match.group(), source)
    if strings:
        source = regex.sub(
            f"{_MARK_OPEN}(\\d+){_MARK_CLOSE}", lambda match: json.dumps(strings[int(match.group(1))]), source
        )
    try:
        return json.loads(source)
    except ValueError as error:
        if args.get("allow_non_json", False):
            return _text(text, args)
        raise ValueError(f"json: {error}") from error


def _sub_value(text: str, args: Mapping[str, Any]) -> Any:
    parser = args.get("value_parser")
    return text if parser is None else parse(parser.get("name", "text"), text, parser.get("args", {}))


def _xml_inline(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    merged: set[str] = set()
    for key, raw in TagPattern.of(args["tag_pattern"]).pairs(text):
        value = _sub_value(raw, args)
        if key not in found or not args.get("merge_duplicates", False):
            found[key] = value
        elif key in merged:
            found[key].append(value)
        else:
            merged.add(key)
            found[key] = [*found[key], value] if isinstance(found[key], list) else [found[key], value]
    return found


def _kv_lines(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    separator = args.get("kv_sep", ":")
    found = {}
    for line in text.split(args.get("line_sep", "\n")):
        key, mark, value = _text(line, args).partition(separator)
        if mark:
            found[_text(key, args)] = _sub_value(_text(value, args), args)
    return found


KINDS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "json": _json,
    "xml-inline": _xml_inline,
    "kv-lines": _kv_lines,
}


def check_kind(where: str, kind: Any, args: Any) -> None:
    """Refuse an unknown kind and arguments that would fail on every region. Raises ResponseTemplateError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ResponseTemplateError(f"{where}.content", f"unknown kind {kind!r}; known are {sorted(KINDS)}")
    place = f"{where}.content_args"
    if not isinstance(args, dict):
        raise ResponseTemplateError(place, f"must be an object, got {type(args).__name__}")
    if kind == "xml-inline":
        if "tag_pattern" not in args:
            raise ResponseTemplateError(f"{place}.tag_pattern", "is required by xml-inline")
        groups = compile_pattern(f"{place}.tag_pattern", args["tag_pattern"]).groupindex
        if missing := [name for name in ("key", "value") if name not in groups]:
            raise ResponseTemplateError(
                f"{place}.tag_pattern", f"needs the named groups 'key' and 'value', lacks {missing}"
            )
    if kind == "json":
        delims = args.get("string_delims", [])
        if not isinstance(delims, list) or not all(_is_delimiter_pair(pair) for pair in delims):
            raise ResponseTemplateError(f"{place}.string_delims", "must be a list of [opener, closer] strings")
    for key in ("line_sep", "kv_sep"):
        if kind == "kv-lines" and not (isinstance(args.get(key, "x"), str) and args.get(key, "x")):
            raise ResponseTemplateError(f"{place}.{key}", f"must be a non-empty string, got {args[key]!r}")
    nested = args.get("value_parser")
    if nested is not None:
        if not isinstance(nested, dict):
            raise ResponseTemplateError(f"{place}.value_parser", f"must be an object, got {type(nested).__name__}")
        renamed = {"content": nested.get("name", "text"), "content_args": nested.get("args", {})}
        check_kind(f"{place}.value_parser", renamed["content"], renamed["content_args"])


def _is_delimiter_pair(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(mark, str) and mark for mark in pair)


def check_transform(where: str, transform: Any) -> None:
    """A string in a transform is one whole `{placeholder}` or plain text; a mixture is refused
    (ResponseTemplateError)."""
    if isinstance(transform, dict):
        for key, value in transform.items():
            check_transform(f"{where}.{key}", value)
    elif isinstance(transform, list):
        for index, value in enumerate(transform):
            check_transform(f"{where}[{index}]", value)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise ResponseTemplateError(where, f"{transform!r} mixes a placeholder with other text; use one or the other")


def apply_transform(transform: Any, scope: Mapping[str, Any]) -> Any:
    """`transform` with its placeholders replaced from `scope`; a dotted one walks into objects. Raises ValueError."""
    if isinstance(transform, dict):
        return {key: apply_transform(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [apply_transform(value, scope) for value in transform]
    whole = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if whole is None:
        return transform
    value: Any = scope
    for key in whole.group(1).split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"transform placeholder {{{whole.group(1)}}}: no {key!r} in the parsed text")
        value = value[key]
    return value


def field_value(field: Any, text: str, captures: Mapping[str, str]) -> Any:
    """The value of one region of `field` (a TemplateField): its content, put through its transform. Raises
    ValueError."""
    value = parse(field.content, text, field.content_args)
    if field.transform is None:
        return value
    if not field.transform_each:
        return apply_transform(field.transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{field.name}: transform_each needs a list of objects")
    return [apply_transform(field.transform, {**captures, **item}) for item in value]
