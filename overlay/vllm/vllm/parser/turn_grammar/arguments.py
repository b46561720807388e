# SPDX-License-Identifier: Apache-2.0
"""Grammar of a call's arguments: strict by the tool's schema, or free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.parser.chat_format.references import followed, typed_by_values
from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar.definitions import TABLES, Definitions, through_definitions
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.json_schemas import ANNOTATIONS, without
from vllm.parser.turn_grammar.limits import STRICT_TAG_BYTES
from vllm.parser.turn_grammar.values import declared_types, value
from vllm.parser.turn_grammar.wire_format import CallSyntax, ParameterSyntax

_READ = frozenset({"type", "properties", "required", "additionalProperties", *TABLES})
_IGNORED = frozenset({"$id", "strict"})


@dataclass(frozen=True)
class Argument:
    name: str
    required: bool
    value: f.Format


def value_delimiters(call: CallSyntax, reserved: Sequence[str] = ()) -> tuple[str, ...]:
    """Substrings that would end a value, or the call, early."""
    syntax = call.parameter
    opening = (literal + syntax.begin for literal, _ in syntax.open_ends)
    return (*call.closers, *reserved, *opening, *syntax.ends, *syntax.stops)


def arguments(
    parameters: Mapping[str, Any] | None, call: CallSyntax, reserved: Sequence[str] = (), strict: bool = False
) -> f.Format:
    """Arguments by the tool's schema, in declared or in alphabetical order.

    Args:
        strict: references that decide a property's type are followed, and fixed values have their own types.

    Raises:
        NotGrammar: the schema asks for something that cannot be held to; the caller leaves
            the arguments free.
    """
    declared = _declared(parameters, call, value_delimiters(call, reserved), strict)
    if not declared:
        return f.NOTHING
    orders = [declared, sorted(declared, key=lambda argument: argument.name)]
    write = _chained if call.parameter.open_ends else _independent
    return _optional_if(
        all(not argument.required for argument in declared), f.alt(*(write(order, call.parameter) for order in orders))
    )


def _between(syntax: ParameterSyntax) -> f.Format:
    # xgrammar refuses an empty pattern.
    return f.regex(syntax.between) if syntax.between else f.NOTHING


def free_arguments(call: CallSyntax, reserved: Sequence[str] = ()) -> f.Format:
    """Any keys with any text."""
    syntax = call.parameter
    body = f.seq(f.regex(syntax.key), f.const(syntax.middle), f.text(value_delimiters(call, reserved)))
    if not syntax.open_ends:
        return f.star(f.seq(_between(syntax), f.tag(syntax.begin, body, syntax.ends)))
    return f.opt(
        f.seq(
            f.regex(syntax.between),
            f.const(syntax.begin),
            f.star(f.tag("", body, _closed_by(syntax))),
            f.tag("", body, syntax.ends),
        )
    )


def least_bytes(parameters: Any, strict: bool = False) -> int:
    """Bytes that the grammar of these arguments takes at least: each property with all that it refers to. Counting ends
    above `STRICT_TAG_BYTES`."""
    parameters = _read(parameters, strict)
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return 0
    definitions, total = Definitions(parameters), 0
    for schema in properties.values():
        total += definitions.size(schema, STRICT_TAG_BYTES - total)
        if total > STRICT_TAG_BYTES:
            break
    return total


def _read(parameters: Any, strict: bool) -> Any:
    """What a grammar reads of a tool's schema."""
    parameters = without(parameters, ANNOTATIONS)
    if not isinstance(parameters, Mapping):
        return parameters
    if strict:
        # As a schema of a model that holds its own kind is written: a reference at the top.
        parameters = {key: value for key, value in followed(parameters, parameters).items() if key[:2] != "x-"}
    if strict and isinstance(properties := parameters.get("properties", {}), Mapping):
        typed = {name: typed_by_values(followed(schema, parameters)) for name, schema in properties.items()}
        parameters = {**parameters, "properties": typed}
    return through_definitions(parameters)


def _declared(
    parameters: Mapping[str, Any] | None, call: CallSyntax, delimiters: Sequence[str], strict: bool
) -> list[Argument]:
    parameters = _read(parameters, strict)
    if not parameters:
        return []
    if unknown := sorted(set(parameters) - _READ - _IGNORED):
        raise NotGrammar(f"keyword {unknown[0]!r} at the top of the schema")
    if parameters.get("type", "object") != "object":
        raise NotGrammar("the parameters are not an object")
    if parameters.get("additionalProperties", False) is not False:
        raise NotGrammar("additionalProperties is not false")
    if not isinstance(properties := parameters.get("properties"), Mapping):
        raise NotGrammar("the schema declares no properties")
    required = parameters.get("required") or ()
    if not isinstance(required, (list, tuple)):
        raise NotGrammar("required is not a list")
    if missing := [name for name in required if not isinstance(name, str) or name not in properties]:
        raise NotGrammar(f"required property {missing[0]!r} is not declared")
    if least_bytes(parameters, strict) > STRICT_TAG_BYTES:
        raise NotGrammar("the schema is too large with all that it refers to")
    definitions = Definitions(parameters)
    declared = []
    for name, schema in properties.items():
        if not call.parameter.spells(name):
            raise NotGrammar(f"parameter name {name!r} cannot be encoded in tool calls")
        if not declared_types(schema):
            raise NotGrammar(f"property {name!r} declares no type")
        try:
            held = value(schema, definitions, delimiters, strips=call.parameter.strips)
            declared.append(Argument(name, name in required, held))
        except NotGrammar as error:
            raise NotGrammar(f"property {name!r}: {error}") from error
    return declared


def _optional_if(condition: bool, fmt: f.Format) -> f.Format:
    return f.opt(fmt) if condition and fmt["type"] != "optional" else fmt


def _independent(order: Sequence[Argument], syntax: ParameterSyntax) -> f.Format:
    """Each parameter has its own closer: a plain sequence of optional parameters."""
    return f.seq(
        *(
            _optional_if(
                not argument.required,
                f.seq(
                    _between(syntax),
                    f.tag(f"{syntax.begin}{argument.name}{syntax.middle}", argument.value, syntax.ends),
                ),
            )
            for argument in order
        )
    )


def _closed_by(syntax: ParameterSyntax) -> list[str]:
    """Closers of a value another parameter follows, up to that parameter's key."""
    between = ("", "\n")
    return [
        *(end + gap + syntax.begin for end in syntax.ends for gap in between),
        *(literal + syntax.begin for literal, _ in syntax.open_ends),
    ]


def _chained(order: Sequence[Argument], syntax: ParameterSyntax) -> f.Format:
    """A closer may be left out before the next parameter, so each closer takes the next
    opener with it and the last parameter is told from the others."""
    return f.seq(f.regex(syntax.between), f.const(syntax.begin), _until_last(order, syntax))


def _until_last(order: Sequence[Argument], syntax: ParameterSyntax) -> f.Format:
    """A non-empty run of `order` with the last one closed: size grows as n log n."""
    if len(order) == 1:
        (argument,) = order
        return f.tag(argument.name + syntax.middle, argument.value, syntax.ends)
    head, rest = order[: len(order) // 2], order[len(order) // 2 :]
    further = f.seq(*(_continued(argument, syntax) for argument in head), _until_last(rest, syntax))
    if any(argument.required for argument in rest):
        return further
    return f.alt(_until_last(head, syntax), further)


def _continued(argument: Argument, syntax: ParameterSyntax) -> f.Format:
    return _optional_if(not argument.required, f.tag(argument.name + syntax.middle, argument.value, _closed_by(syntax)))
