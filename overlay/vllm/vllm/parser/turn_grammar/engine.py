# SPDX-License-Identifier: Apache-2.0
"""Engine side of turn grammars: stop ids, life after the end, compilation at start.

Called through hooks in `StructuredOutputManager`; runs in the engine process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xgrammar as xgr
from vllm.logger import init_logger
from vllm.parser.turn_grammar.cache import tag_text
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.guarded import pair_of
from vllm.parser.turn_grammar.second_library import grammar_of_second_library
from vllm.parser.turn_grammar.turn import TurnRules
from vllm.parser.turn_grammar.wire_format import TurnFormat, turn_format_named
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend, XgrammarGrammar

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

logger = init_logger(__name__)

SLOW_COMPILE_SECONDS = 0.05


class TurnGrammar(XgrammarGrammar):
    """A matcher that lets a request go on after its grammar has ended, and holds a guard beside it.

    With `ignore_eos` the engine samples on behind the stop token; upstream's class refuses
    those tokens, which fails the request.
    """

    guard: xgr.GrammarMatcher | None = None

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            if self._is_terminated:
                break
            if not super().accept_tokens(request_id, [token]):
                return False
            if self.guard is not None and not self.guard.accept_token(token):
                return False
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        accepted = super().validate_tokens(tokens)
        if self.guard is None:
            return accepted
        count = 0
        while count < len(accepted) and self.guard.accept_token(accepted[count]):
            count += 1
        if count:
            self.guard.rollback(count)
        return accepted[:count]

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        if self.guard is not None:
            self.guard.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, idx: int) -> None:
        super().fill_bitmask(bitmask, idx)
        if self.guard is not None:
            own = xgr.allocate_token_bitmask(1, self.vocab_size)
            self.guard.fill_next_token_bitmask(own)
            if not self.matcher.is_completed():
                # The guard's text could end anywhere, and to the client's a stop id may be text.
                own[0] &= self._without(self.guard.stop_token_ids)
            bitmask[idx] &= own[0]

    def _without(self, tokens: list[int]) -> torch.Tensor:
        """A mask row that keeps all but `tokens`."""
        words = np.full(-(-self.vocab_size // 32), 0xFFFFFFFF, dtype=np.uint32)
        for token in tokens:
            words[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
        return torch.from_numpy(words.view(np.int32))

    def reset(self) -> None:
        super().reset()
        if self.guard is not None:
            self.guard.reset()


def with_stop_ids(
    grammar: XgrammarGrammar, stop_ids: set[int], rollback: int, guard: xgr.CompiledGrammar | None = None
) -> TurnGrammar:
    """`grammar` with a matcher that takes each of `stop_ids` only where the grammar can end.

    xgrammar knows the tokenizer's EOS alone. Another id that stops the engine (a second EOS of
    the generation config, the request's `stop_token_ids`) would pass as text and cut the turn. Ids that are no tokens
    stop nothing; xgrammar fails on some and takes others for their low 32 bits.
    """
    tokens = sorted(token for token in stop_ids if 0 <= token < grammar.vocab_size)

    def matcher(compiled: xgr.CompiledGrammar) -> xgr.GrammarMatcher:
        return xgr.GrammarMatcher(compiled, override_stop_tokens=tokens or None, max_rollback_tokens=rollback)

    made = TurnGrammar(matcher=matcher(grammar.ctx), vocab_size=grammar.vocab_size, ctx=grammar.ctx)
    if guard is not None:
        made.guard = matcher(guard)
    return made


def finished_grammar(manager: StructuredOutputManager, request: Request, create: Callable[[], Any]) -> Any:
    """What `create` compiles, with the request's stop ids; compile time in the log."""
    started = time.perf_counter()
    backend = manager.backend
    if isinstance(backend, XgrammarBackend) and (other := grammar_of_second_library(manager, request)) is not None:
        return other
    kind, text = request.structured_output_request.structured_output_key
    pair = pair_of(text) if kind == StructuredOutputOptions.STRUCTURAL_TAG else None
    if pair is None or not isinstance(backend, XgrammarBackend):
        grammar, guard = create(), None
    else:
        grammar, guard = backend.compile_grammar(kind, pair[0]), backend.compiler.compile_structural_tag(pair[1])
    if not isinstance(grammar, XgrammarGrammar) or not isinstance(backend, XgrammarBackend):
        return grammar
    log_compile(backend, grammar, time.perf_counter() - started)
    return with_stop_ids(grammar, ending_ids(manager, request.sampling_params), backend.num_speculative_tokens, guard)


def ending_ids(manager: StructuredOutputManager, params: SamplingParams | None) -> set[int]:
    """Stop ids of the request that end a turn of the model: all but those that only the client asked for.

    Those end the output wherever they come, as without a grammar. Refused where the grammar cannot end, they could take
    the last token that goes on, a letter of a header for one.
    """
    if params is None:
        return set()
    if not params.stop_token_ids:
        return params.all_stop_token_ids
    if (own := vars(manager).get("_model_stop_ids")) is None:
        ids = manager.vllm_config.model_config.try_get_generation_config().get("eos_token_id")
        own = {getattr(manager.tokenizer, "eos_token_id", None), *(ids if isinstance(ids, list) else [ids])}
        manager._model_stop_ids = own
    return params.all_stop_token_ids - (set(params.stop_token_ids) - own)


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
