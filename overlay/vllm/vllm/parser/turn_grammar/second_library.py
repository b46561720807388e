# SPDX-License-Identifier: Apache-2.0
"""Constraints that vLLM's choice of a library gives to another one than the engine's.

With `auto`, vLLM checks a constraint against xgrammar and takes one that xgrammar refuses to llguidance or outlines. An
engine has one library, though, and with turn grammars that is xgrammar from the start. Outside of a turn (a plain
completion, a structural tag of the client's own) such a constraint gets the library it was checked against.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

if TYPE_CHECKING:
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

_LOCK = threading.Lock()


def grammar_of_second_library(manager: StructuredOutputManager, request: Request) -> StructuredOutputGrammar | None:
    """The request's grammar by the library it was checked against; None where that is xgrammar.

    Raises:
        ValueError: that library counts another vocabulary than the model.
    """
    outputs = getattr(request.sampling_params, "structured_outputs", None)
    name = getattr(outputs, "_backend", None)
    if name not in ("guidance", "outlines"):
        return None
    kind, text = request.structured_output_request.structured_output_key
    return _library(manager, name).compile_grammar(kind, text)


def _library(manager: Any, name: str) -> StructuredOutputBackend:
    """`manager`'s instance of a library, made when it is first wanted: that takes seconds on a large vocabulary."""
    with _LOCK:
        made = vars(manager).setdefault("_second_libraries", {})
        if name not in made:
            size = manager.vllm_config.model_config.get_vocab_size()
            made[name] = _class_of(name)(manager.vllm_config, tokenizer=manager.tokenizer, vocab_size=size)
            words = [backend.allocate_token_bitmask(1).shape for backend in (made[name], manager.backend)]
            if words[0] != words[1]:
                del made[name]
                raise ValueError(f"{name} cannot hold this constraint: it counts other tokens than the model's {size}")
        return made[name]


def _class_of(name: str) -> type[StructuredOutputBackend]:
    if name == "outlines":
        from vllm.v1.structured_output.backend_outlines import OutlinesBackend

        return OutlinesBackend
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend

    return GuidanceBackend
