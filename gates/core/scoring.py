# SPDX-License-Identifier: Apache-2.0
"""Per-token scores from a server: of a given text (prompt_logprobs) and of its own continuation (logprobs)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gates.core.client import MOST_BYTES, Client, ServerTrouble
from gates.core.errors import Failed, Skip

COMPLETIONS = "POST /v1/completions"
CANDIDATE_BYTES = 256  # of JSON for one candidate of one position, at most
ROUNDING = 1e-3  # a log probability above 0, or probabilities above 1 together, by less are rounding
LEAST = -1e4  # nats; vLLM writes -9999 for a probability of 0


@dataclass(frozen=True)
class Scores:
    """Scores of tokens 1.. of a prompt: the token's own log probability (nats) and the listed candidates."""

    logprobs: tuple[float, ...]
    top: tuple[dict[int, float], ...]


def finite(value: Any, what: str) -> float:
    """A log probability as a number.

    Raises:
        Failed: NaN, an infinity, or null, which is how NaN travels where JSON has none: the model computes nonsense;
            text, or a number that is the logarithm of no probability (a logit, or one of another scale).
    """
    if value is not None and type(value) not in (int, float):
        raise Failed(f"the log probability of {what} is {str(value)[:40]!r}: that is no number")
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # an integer beyond any float
        number = math.inf
    if not math.isfinite(number):
        raise Failed(f"the log probability of {what} is {value}: the server computes what is no number")
    if not LEAST <= number <= ROUNDING:
        raise Failed(f"the log probability of {what} is {number:g}: that is the logarithm of no probability")
    return number


def distribution(table: Mapping[int, float], what: str) -> dict[int, float]:
    """Candidates of one place, token id to log probability.

    Raises:
        Failed: as `finite`, or together they are more than certain.
    """
    row = {token: finite(value, f"a candidate for {what}") for token, value in table.items()}
    mass = math.fsum(math.exp(value) for value in row.values())
    if mass > 1 + ROUNDING:
        raise Failed(f"the candidates for {what} have a mass of {mass:.4g}: that is no distribution")
    return row


def score(client: Client, tokens: Sequence[int], *, top: int = 20, cached: bool | None = None) -> Scores:
    """Log probabilities the server gives to a text, through `prompt_logprobs`.

    Args:
        tokens: the whole text, ids.
        top: candidates per position.
        cached: not False lets the prefix cache serve; False asks for a private cache salt.
    Raises:
        ServerTrouble: the answer has no or too few prompt logprobs, or in another shape.
        Skip: the server has no such field at all (vLLM's is null where it has nothing to say).
        Failed: one of them is no log probability, a row is no distribution, or does not list the prompt's own token, as
            rows of a neighbour do.
    """
    most = max(MOST_BYTES, len(tokens) * (top + 1) * CANDIDATE_BYTES)
    options: dict[str, Any] = {"prompt_logprobs": top, "max_tokens": 1, "temperature": 0, "most_bytes": most}
    if cached is False:
        options["cache_salt"] = uuid.uuid4().hex
    answer = client.complete(list(tokens), **options)
    choice = answer["choices"][0]
    client.has("prompt_logprobs", "prompt_logprobs" in choice or "prompt_logprobs" in answer, COMPLETIONS)
    rows = choice.get("prompt_logprobs") or answer.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(tokens):
        got = len(rows) if isinstance(rows, list) else None
        raise ServerTrouble(f"{got} rows of prompt_logprobs for {len(tokens)} tokens", where=COMPLETIONS)
    own, listed = [], []
    for place, (token, row) in enumerate(zip(tokens[1:], rows[1:], strict=True), 1):
        try:
            told = {int(k): v["logprob"] for k, v in (row or {}).items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ServerTrouble(f"row {place} of prompt_logprobs has another shape", where=COMPLETIONS) from error
        table = distribution(told, f"prompt token {place}")
        if token not in table:
            raise Failed(f"prompt_logprobs: token {place} of the prompt is missing from its own row")
        own.append(table[token])
        listed.append(table)
    return Scores(tuple(own), tuple(listed))


@dataclass(frozen=True)
class Continuation:
    """A greedy continuation: token ids and the log probability of each when it was decoded.

    Attributes:
        top: candidates per token, where more than one was asked for and the server lists them.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    top: tuple[dict[int, float], ...] = ()


def continue_greedily(
    client: Client, prompt: Sequence[int], *, max_tokens: int, top: int = 1, capped: bool = False, **options: Any
) -> Continuation:
    """Decode `max_tokens` tokens greedily (EOS ignored) with their log probabilities.

    Args:
        top: candidates to list per token.
        capped: as many tokens were let through when more were asked for.
    Raises:
        ServerTrouble: ids or log probabilities are missing.
        Skip: as `score`; the server caps answers at fewer tokens.
        Failed: there are more or fewer tokens, a log probability is none, or the candidates are no distribution.
    """
    answer = client.complete(
        list(prompt),
        max_tokens=max_tokens,
        temperature=0,
        logprobs=top,
        ignore_eos=True,
        return_tokens_as_token_ids=True,
        **options,
    )
    choice = answer["choices"][0]
    client.has("logprobs of completions", "logprobs" in choice, COMPLETIONS)
    block = choice.get("logprobs") or {}
    names, values = block.get("tokens"), block.get("token_logprobs")
    if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
        raise ServerTrouble("no logprobs of the continuation", where=COMPLETIONS)
    if 0 < len(names) < max_tokens and choice.get("finish_reason") == "length" and not capped:
        # An operator's cap lets as many through when no more are asked for; a server that miscounts does not.
        continue_greedily(client, prompt, max_tokens=len(names), top=top, capped=True, **options)
        raise Skip(f"the server ends answers at {len(names)} tokens, {max_tokens} are asked for")
    if len(names) != max_tokens:
        raise Failed(f"{len(names)} tokens where {max_tokens} were asked for, the model's own end ignored")
    try:
        ids = tuple(_id(name) for name in names)
        rows = block.get("top_logprobs") if top > 1 else None
        named = [{_id(k): v for k, v in (row or {}).items()} for row in rows or ()]
    except (ValueError, AttributeError) as error:
        raise ServerTrouble("tokens are not told as ids", where="return_tokens_as_token_ids") from error
    own = tuple(finite(v, f"answer token {i}") for i, v in enumerate(values))
    listed = tuple(distribution(row, f"answer token {i}") for i, row in enumerate(named))
    return Continuation(ids, own, str(choice.get("finish_reason")), listed)


def one_token(client: Client, prompt: Sequence[int], **options: Any) -> int:
    """The id of the token that is drawn after `prompt` (EOS ignored).

    Raises:
        ServerTrouble: it is not told as an id.
    """
    asked = {"max_tokens": 1, "logprobs": 0, "ignore_eos": True, "return_tokens_as_token_ids": True, **options}
    names = (client.complete(list(prompt), **asked)["choices"][0].get("logprobs") or {}).get("tokens")
    try:
        return _id(names[0])
    except (ValueError, TypeError, IndexError) as error:
        raise ServerTrouble("tokens are not told as ids", where="return_tokens_as_token_ids") from error


def _id(name: object) -> int:
    return int(str(name).removeprefix("token_id:"))
