# SPDX-License-Identifier: Apache-2.0
"""Entry points of turn grammars into the structured-output manager.

The grammar code lies under `vllm.parser`, whose import reaches most of the front end; it is
loaded here on first use, after the manager's own module is complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def ends_where_the_grammar_may(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `StructuredOutputManager._create_grammar(request)`: see `engine.finished_grammar`."""

    @functools.wraps(create)
    def created(manager: Any, request: Any) -> Any:
        from vllm.parser.turn_grammar.engine import finished_grammar

        return finished_grammar(manager, request, functools.partial(create, manager, request))

    return created


def compile_at_start(manager: Any) -> None:
    """See `engine.compile_at_start`. Nothing is loaded without a reasoning parser."""
    if manager.vllm_config.structured_outputs_config.reasoning_parser:
        from vllm.parser.turn_grammar import engine

        engine.compile_at_start(manager)
