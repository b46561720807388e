# SPDX-License-Identifier: Apache-2.0
"""What a gate is, and what it is given."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from gates.core import load
from gates.core.client import Client
from gates.core.errors import GateError, Skip
from gates.core.profile import Profile
from gates.core.result import GateResult, Measurement, Verdict
from gates.core.server_facts import ServerFacts
from gates.core.thresholds import Threshold
from gates.core.wording import WORDINGS, Wording

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Context:
    """Everything a gate may use.

    Attributes:
        client: the server under test.
        facts: what it told about itself.
        profile: lengths, counts and seeds in force.
        thresholds: by gate name.
        progress: call with a short text while working.
        measure_floor: also measure the server against itself.
        records: folder of what servers showed when they were first asked (gates/core/records.py).
        reference: scores of the CPU reference on given passages (gates/core/reference.py), if any.
        server_log: the server's log, if it can be read here.
        server_args: the server's arguments, as far as they were told.
        seeds: those the gate has drawn from, for the record.
        left_out: what the server could not be asked, for the record.
        kept: readings that several gates of a run rest on, by what they are of.
    """

    client: Client
    facts: ServerFacts
    profile: Profile
    thresholds: Mapping[str, Threshold]
    progress: Callable[[str], None] = lambda text: None
    measure_floor: bool = False
    records: Path = Path("ledger/records")
    reference: Path | None = None
    server_log: Path | None = None
    server_args: str = ""
    seeds: set[int] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    kept: dict[Any, Any] = field(default_factory=dict)

    def seed(self, offset: int = 0) -> int:
        """The profile's seed plus an offset; remembered, so that the result tells it."""
        value = self.profile.seed + offset
        self.seeds.add(value)
        return value

    @property
    def wording(self) -> Wording:
        """The texts to send, by the profile's name for them."""
        return WORDINGS[self.profile.wording]

    def lengths(self, wanted: tuple[int, ...], *, reserve: int) -> list[int]:
        """Context rungs in tokens that fit the server with `reserve` tokens to spare.

        Raises:
            Skip: none fits.
        """
        limit = self.facts.max_model_len
        fitting = [n for n in wanted if limit is None or n + reserve <= limit]
        if not fitting:
            raise Skip(f"the server's context of {limit} tokens holds none of the rungs {list(wanted)}")
        if missing := [n for n in wanted if n not in fitting]:
            self.left_out.add(f"its context of {limit} tokens is too short for the rungs {missing}")
        return fitting

    def at_once(self, tokens: int) -> int:
        """How many prompts of `tokens` may be under way at once."""
        return load.at_once(tokens, self.profile.concurrency, self.profile.tokens_at_once)

    def ask(self, call: Callable[[T], R], items: Iterable[T], tokens: Callable[[T], int]) -> list[R]:
        """`call` over items in order, as many at once as their prompts' lengths (`tokens`) allow; as `Client.map`."""
        return [r for width, group in self._groups(items, tokens) for r in self.client.map(call, group, at_once=width)]

    def asked(self, lengths: Iterable[int], answer: int) -> list[load.Asked]:
        """What `ask` sends for prompts of these lengths, in tokens, with answers of at most `answer`."""
        groups = self._groups(lengths, lambda tokens: tokens)
        return [load.Asked(tokens, answer, at_once=width) for width, group in groups for tokens in group]

    def _groups(self, items: Iterable[T], tokens: Callable[[T], int]) -> Iterator[tuple[int, list[T]]]:
        """Neighbours of like length, and how many of them are under way at once."""
        for width, group in groupby(items, lambda item: self.at_once(tokens(item))):
            listed = list(group)
            yield min(width, len(listed)), listed


@dataclass(frozen=True)
class Gate:
    """A gate: a name, what it says when it passes, and how it is run.

    Attributes:
        name: kebab-case, unique; also the key in thresholds.toml where it has a limit.
        category: `quality`, `isolation`, `api`, `robustness` or `operation`; the report's sections.
        summary: one line for `--list`.
        run: the work; returns a result, raises Skip, or raises GateError (the gate broke or the server is no server).
        faults: names of the known faults (gates/controls) this gate must turn red on.
        asks: the prompts of the profile's lengths that it sends, for an estimate; raises Skip where it sends none.
    """

    name: str
    category: str
    summary: str
    run: Callable[[Context], GateResult]
    faults: tuple[str, ...] = ()
    asks: Callable[[Context], Sequence[load.Asked]] | None = None


CATEGORIES = ("quality", "isolation", "api", "robustness", "operation")


def judge(
    ctx: Context,
    gate: str,
    measurement: Measurement,
    *,
    noise_floor: float | None = None,
    own_floor: float | None = None,
    seeds: tuple[int, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> GateResult:
    """Hold a measurement to the gate's threshold.

    Args:
        noise_floor: the server's distance from itself in another batch shape or cache state. Kernels chosen by shape
            make that of a good server, too, so that a limit below it is a wrong limit.
        own_floor: the same between readings that differ in nothing. Beyond the limit it is the server that is wrong.

    Raises:
        GateError: the gate has no threshold, or the threshold lies below the measured floor.
    """
    limit = ctx.thresholds.get(gate)
    if limit is None:
        raise GateError("no threshold", where=f"gate {gate}", action="add it to gates/thresholds.toml with its source")
    if measurement.value is None:
        raise GateError("nothing was measured", where=f"gate {gate}")
    limit = limit.of(ctx.profile.name)
    comparison = "at most" if limit.direction == "max" else "at least"
    allowed = f"allowed is {comparison} {limit.value:g}"
    if own_floor is not None:
        noise_floor = own_floor if noise_floor is None else max(noise_floor, own_floor)
    steady = own_floor is None or limit.holds(own_floor)
    if noise_floor is not None and steady:
        limit.check_floor(noise_floor)
    good = steady and limit.holds(measurement.value)
    told = f"{measurement.value:.6g} {measurement.unit}, {allowed}"
    if not steady:
        told = f"the same request twice gives answers {own_floor:.6g} {measurement.unit} apart, {allowed}"
    return GateResult(
        gate=gate,
        verdict=Verdict.PASS if good else Verdict.FAIL,
        reason="" if good else told,
        measurement=measurement,
        threshold=limit.value,
        threshold_direction=limit.direction,
        threshold_source=limit.source,
        noise_floor=noise_floor,
        seeds=seeds,
        details=details or {},
    )


def beyond_chance(result: GateResult) -> GateResult:
    """A FAIL at an upper limit that lies within the interval of the figure is none: too few samples to tell (SKIP)."""
    seen, limit = result.measurement, result.threshold
    if result.verdict is not Verdict.FAIL or seen is None or seen.low is None or limit is None or seen.low > limit:
        return result
    told = f"{seen.samples} samples are too few to tell: {result.reason}, and the interval begins at {seen.low:.3g}"
    return replace(result, verdict=Verdict.SKIP, reason=told)


def checks(gate: str, outcomes: Mapping[str, str], *, details: Mapping[str, Any] | None = None) -> GateResult:
    """A yes-or-no gate of named checks.

    Args:
        outcomes: check name to "" where it held, "skip: REASON" where it could not be tried, or what went wrong.
    """
    tried = {k: v for k, v in outcomes.items() if not v.startswith("skip: ")}
    wrong = {k: v for k, v in tried.items() if v}
    if not tried:
        return GateResult(gate=gate, verdict=Verdict.SKIP, reason=next(iter(outcomes.values()), "skip: no checks")[6:])
    first = next(iter(wrong.items()), ("", ""))
    untried = len(outcomes) - len(tried)
    note = f"{untried} of {len(outcomes)} checks not tried" if untried else ""
    return GateResult(
        gate=gate,
        verdict=Verdict.FAIL if wrong else Verdict.PASS,
        reason=f"{len(wrong)} of {len(tried)} checks failed, first `{first[0]}`: {first[1]}" if wrong else note,
        measurement=Measurement(
            value=float(len(tried) - len(wrong)), unit=f"of {len(tried)} checks", samples=len(tried)
        ),
        details={"checks": dict(outcomes), **(details or {})},
    )


def discover(package: str = "gates.device") -> dict[str, Gate]:
    """All gates of a package, in category order, then by name.

    Raises:
        GateError: two gates share a name, or a category is unknown.
    """
    found: dict[str, Gate] = {}
    root = importlib.import_module(package)
    for info in pkgutil.iter_modules(root.__path__):
        if info.name.startswith("_") or info.ispkg:
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        gates = getattr(module, "GATES", None) or ((module.GATE,) if hasattr(module, "GATE") else ())
        for gate in gates:
            if gate.category not in CATEGORIES:
                raise GateError(f"unknown category {gate.category!r}", where=f"gate {gate.name}")
            if gate.name in found:
                raise GateError("two gates of one name", where=f"gate {gate.name}", action="rename one")
            found[gate.name] = gate
    return dict(sorted(found.items(), key=lambda item: (CATEGORIES.index(item[1].category), item[0])))
