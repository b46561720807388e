# SPDX-License-Identifier: Apache-2.0
"""`habana_frameworks.torch.hpu.metrics`: what was compiled. Time is that of the first run, not of a compiler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gates.hpusim import probe

_recipes: list[tuple[str, float]] = []  # name, milliseconds


@contextmanager
def compilation(name: str) -> Iterator[None]:
    """Book one graph compilation."""
    start = time.perf_counter()
    yield
    _recipes.append((name, (time.perf_counter() - start) * 1e3))
    if probe.listeners:
        probe.emit("compile", name=name)


class GraphCompilationMetric:
    """Compilations since `start` (a local metric) or since process start (the global one)."""

    def __init__(self) -> None:
        self._from = 0
        self._to: int | None = None

    def name(self) -> str:
        return "graph_compilation"

    def start(self) -> None:
        self._from, self._to = len(_recipes), None

    def stop(self) -> None:
        self._to = len(_recipes)

    def reset(self) -> None:
        self.start()

    def stats(self) -> list[tuple[str, object]]:
        recipes = _recipes[self._from : self._to]
        total = sum(milliseconds for _, milliseconds in recipes)
        average = total / len(recipes) if recipes else 0
        return [("TotalNumber", len(recipes)), ("TotalTime", total), ("AvgTime", average), ("Recipes", recipes)]


_GLOBAL = GraphCompilationMetric()


def _check(name: str) -> None:
    if name != "graph_compilation":
        raise NotImplementedError(f"metric {name!r} is not emulated: only 'graph_compilation' is")


def metric_global(name: str) -> GraphCompilationMetric:
    _check(name)
    return _GLOBAL


@contextmanager
def metric_localcontext(name: str) -> Iterator[GraphCompilationMetric]:
    """Metric of the `with` block."""
    _check(name)
    metric = GraphCompilationMetric()
    metric.start()
    try:
        yield metric
    finally:
        metric.stop()
