# SPDX-License-Identifier: Apache-2.0
"""Engine side of turn grammars: stop ids, life after the end, compilation at start.

Called through hooks in `StructuredOutputManager`; runs in the engine process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xgrammar as xgr
from vllm.logger import init_logger
from vllm.parser.turn_grammar.cache import tag_text
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.turn import TurnRules
from vllm.parser.turn_grammar.wire_format import TurnFormat, turn_format_named
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, XgrammarGrammar

if TYPE_CHECKING:
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

logger = init_logger(__name__)

SLOW_COMPILE_SECONDS = 0.05


class TurnGrammar(XgrammarGrammar):
    """A matcher that lets a request go on after its grammar has ended.

    With `ignore_eos` the engine samples on behind the stop token; upstream's class refuses
    those tokens, which fails the request.
    """

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            if self._is_terminated:
                break
            if not super().accept_tokens(request_id, [token]):
                return False
        return True


def with_stop_ids(grammar: XgrammarGrammar, stop_ids: set[int], rollback: int) -> TurnGrammar:
    """`grammar` with a matcher that takes each of `stop_ids` only where the grammar can end.

    xgrammar knows the tokenizer's EOS alone. Another id that stops the engine (a second EOS of
    the generation config, the request's `stop_token_ids`) would pass as text and cut the turn. Ids that are no tokens
    stop nothing; xgrammar fails on some and takes others for their low 32 bits.
    """
    tokens = sorted(token for token in stop_ids if 0 <= token < grammar.vocab_size)
    matcher = xgr.GrammarMatcher(grammar.ctx, override_stop_tokens=tokens or None, max_rollback_tokens=rollback)
    return TurnGrammar(matcher=matcher, vocab_size=grammar.vocab_size, ctx=grammar.ctx)


def finished_grammar(manager: StructuredOutputManager, request: Request, create: Callable[[], Any]) -> Any:
    """What `create` compiles, with the request's stop ids; compile time in the log."""
    started = time.perf_counter()
    grammar = create()
    backend = manager.backend
    if not isinstance(grammar, XgrammarGrammar) or not isinstance(backend, XgrammarBackend):
        return grammar
    log_compile(backend, grammar, time.perf_counter() - started)
    params = request.sampling_params
    stop_ids = set() if params is None else params.all_stop_token_ids
    return with_stop_ids(grammar, stop_ids, backend.num_speculative_tokens)


def log_compile(backend: XgrammarBackend, grammar: XgrammarGrammar, seconds: float) -> None:
    if seconds >= SLOW_COMPILE_SECONDS:
        logger.info(
            "Compiled a grammar in %.2f s: %.1f MB, %.1f MB in the grammar cache.",
            seconds,
            grammar.ctx.memory_size_bytes / 2**20,
            backend.compiler.get_cache_size_bytes() / 2**20,
        )


def compile_at_start(manager: StructuredOutputManager) -> None:
    """Compile the grammar of a turn without tools in the background, so that the first
    request does not wait for it. Does nothing for parsers without a turn grammar."""
    config = manager.vllm_config.structured_outputs_config
    if manager.vllm_config.model_config.skip_tokenizer_init or config.backend not in ("auto", "xgrammar"):
        return
    turn = turn_format_named(config.reasoning_parser, manager.tokenizer)
    if turn is None:
        return
    manager.backend = XgrammarBackend(
        manager.vllm_config, tokenizer=manager.tokenizer, vocab_size=manager.vllm_config.model_config.get_vocab_size()
    )
    manager.executor.submit(_compile_plain, manager.backend, turn)


def _compile_plain(backend: XgrammarBackend, turn: TurnFormat) -> None:
    started = time.perf_counter()
    try:
        text = tag_text(turn, TurnRules(thinking="required" if turn.always_thinks else "optional"))
        grammar = backend.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, text)
    except (NotGrammar, RuntimeError) as error:
        logger.warning("The grammar of a plain turn was not compiled at start: %s.", error)
        return
    logger.info(
        "Compiled the grammar of a plain %s turn at start in %.2f s: %.1f MB, %.1f MB in the grammar cache.",
        turn.label,
        time.perf_counter() - started,
        grammar.ctx.memory_size_bytes / 2**20,
        backend.compiler.get_cache_size_bytes() / 2**20,
    )
