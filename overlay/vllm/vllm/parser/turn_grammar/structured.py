# SPDX-License-Identifier: Apache-2.0
"""The body of an answer under a structured-output request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.parser.chat_format import json_text
from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar.formats import NotGrammar, accepted
from vllm.parser.turn_grammar.guarded import guarded
from vllm.parser.turn_grammar.json_schemas import (
    ANNOTATIONS,
    bounds_string_length,
    has_patterns,
    without,
)
from vllm.parser.turn_grammar.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_BYTES,
    MAX_SCHEMA_BYTES,
    check_schema,
    check_size,
    check_text,
)
from vllm.parser.turn_grammar.productive import dead_rules
from vllm.parser.turn_grammar.repeats import check_repeats
from vllm.parser.turn_grammar.sized_strings import sized_json
from vllm.parser.turn_grammar.unheld import unheld
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.utils import convert_lark_to_ebnf, grammar_is_likely_lark

logger = init_logger(__name__)


def answer_body(
    params: StructuredOutputsParams | None,
    delimiters: tuple[str, ...],
    parameter: str = "structured_outputs",
    strict: bool = True,
) -> f.Format | None:
    """Format of the answer's text, None for any text.

    Args:
        params: any constraint but a structural tag.
        delimiters: substrings that would end the answer; no text of the format holds them.
        parameter: the field of the request that holds the constraint.
        strict: a keyword that no grammar enforces is an error, and else a warning in the log.

    Raises:
        VLLMValidationError: the constraint is over a limit, or xgrammar refuses it: no other library holds a turn.
    """
    try:
        return _body(params, delimiters, parameter, strict)
    except NotGrammar as error:
        raise VLLMValidationError(f"the structured output cannot be held: {error}", parameter=parameter) from error


def _body(
    params: StructuredOutputsParams | None, delimiters: tuple[str, ...], parameter: str, strict: bool
) -> f.Format | None:
    if params is None or params.all_constraints_none():
        return None
    if params.json_object:
        return f.json_value({"type": "object"}, delimiters)
    if params.json is not None:
        schema = params.json if not isinstance(params.json, str) else _loaded(params.json)
        check_schema(schema, parameter=parameter)
        schema = without(schema, ANNOTATIONS)
        check_size(schema, MAX_SCHEMA_BYTES, parameter=parameter, owner="the JSON schema")
        check_repeats(schema, parameter)
        if (keyword := unheld(schema)) is not None:
            if strict:
                raise NotGrammar(f"{keyword} is not enforced; leave it out, say it another way, or drop `strict`")
            logger.warning("A JSON schema is held but for what no grammar enforces: %s.", keyword)
        accepted(f.json_value(schema))
        if bounds_string_length(schema):
            # A length and excluded substrings cannot both be held by one grammar.
            return guarded(sized_json(schema), delimiters)
        body = accepted(f.json_value(schema, delimiters))
        return guarded(body, delimiters) if has_patterns(schema) else body
    if params.regex is not None:
        _check(params.regex, MAX_REGEX_BYTES, "the regex")
        return guarded(accepted(f.regex(params.regex)), delimiters)
    if params.choice is not None:
        if not params.choice:
            raise NotGrammar("an empty list of choices")
        check_schema({"enum": params.choice}, parameter="structured_outputs", owner="the choices")
        if held := next((mark for choice in params.choice for mark in delimiters if mark in choice), None):
            raise VLLMValidationError(
                f"a choice holds {held!r}, which would end the answer; leave it out", parameter="structured_outputs"
            )
        return f.any_of(params.choice)
    if params.grammar is not None:
        _check(params.grammar, MAX_GRAMMAR_BYTES, "the grammar")
        return guarded(_written_out(_ebnf(params.grammar)), delimiters)
    raise NotGrammar("json_object is false; send true, or leave it out")


def _form(request: Any) -> tuple[str, Any]:
    """The field of the request, of either API, that constrains its answer, and the format given there; none for one of
    any text."""
    formats = {
        "response_format": getattr(request, "response_format", None),
        "text": getattr(getattr(request, "text", None), "format", None),
    }
    given = ((name, form) for name, form in formats.items() if form is not None and form.type != "text")
    return next(given, ("structured_outputs", None))


def constraint_parameter(request: Any) -> str:
    """The field of the request, of either API, that holds its structured-output constraint."""
    return _form(request)[0]


def constraint_of(request) -> StructuredOutputsParams | None:
    """The request's own structured-output constraint, of either API."""
    params = request.extract_structured_outputs()
    return None if params is None else replace(params)


def strictly(request: Any) -> bool:
    """Whether an answer outside its schema is worse than none: a response format says so by `strict`, as tools do."""
    form = _form(request)[1]
    holder = getattr(form, "json_schema", None) or form
    return form is None or bool(getattr(holder, "strict", None))


def _check(text: str, limit: int, owner: str) -> None:
    check_text(text, owner, "structured_outputs")
    check_size(text, limit, parameter="structured_outputs", owner=owner)


def _loaded(schema: str) -> Any:
    try:
        return json_text.loads(schema)
    except ValueError as error:
        raise VLLMValidationError(
            f"the JSON schema is not JSON: {error}; send an object, or the text of one", parameter="structured_outputs"
        ) from error


def _written_out(grammar: str) -> f.Format:
    """Format of a client's EBNF; refused where a turn could never end in it."""
    import xgrammar as xgr

    body = accepted({"type": "grammar", "grammar": grammar})
    if dead := dead_rules(xgr.Grammar.from_ebnf(grammar)):
        raise VLLMValidationError(
            f"the grammar's rules {', '.join(dead)[:200]} derive no finite text; give them an alternative that ends",
            parameter="structured_outputs",
        )
    return body


def _ebnf(grammar: str) -> str:
    if not grammar_is_likely_lark(grammar):
        return grammar
    try:
        return convert_lark_to_ebnf(grammar)
    except ValueError as error:
        raise NotGrammar(f"Lark grammar: {error}") from error
