# SPDX-License-Identifier: Apache-2.0
"""Guard of the run-ahead patch: which layers the host waits for in a prefill."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

LAYERS = 62


class ToyDecoderLayer(torch.nn.Module):
    def forward(self, x):
        TRACE.append("layer")
        return x


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(ToyDecoderLayer() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


TRACE: list = []


@pytest.fixture
def loaded(make_engine, monkeypatch: pytest.MonkeyPatch, forward_state):
    """`loaded(depth)`: the toy model after the runner's own load_model."""
    from vllm_gaudi.runtime import settings
    from vllm_gaudi.v1.worker import hpu_model_runner as mr

    class Event:
        made = 0

        def __init__(self) -> None:
            self.name, Event.made = Event.made, Event.made + 1

        def record(self) -> None:
            TRACE.append(("record", self.name))

        def synchronize(self) -> None:
            TRACE.append(("wait", self.name))

    def load(depth: int):
        Event.made = 0
        monkeypatch.setenv(settings.PREFIX + "RUN_AHEAD_DEPTH", str(depth))
        settings.current.cache_clear()
        runner = make_engine(False, 64).runner
        model = _Model()
        monkeypatch.setattr(mr, "get_model", lambda **kwargs: model)
        monkeypatch.setattr(mr, "apply_model_specific_patches", lambda runner: None)
        monkeypatch.setattr(mr, "_maybe_wrap_in_hpu_graph", lambda model, **kwargs: model)
        monkeypatch.setattr(mr.htorch.core, "mark_step", lambda *a, **k: TRACE.append("cut"))
        runner.load_model()
        monkeypatch.setattr(torch.hpu, "Event", Event)
        TRACE.clear()
        return model

    yield load
    settings.current.cache_clear()


def _forward(model, tokens: int, graphs: bool = False, prompt: bool = True, warmup: bool = False) -> list:
    from vllm_gaudi.runtime import forward_state

    TRACE.clear()
    forward_state.note_forward(prompt, tokens, graphs, warmup)
    model(torch.zeros(1))
    return list(TRACE)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("tokens", [256, 4096])
def test_prefill_waits_for_earlier_layers(loaded, depth: int, tokens: int) -> None:
    trace = _forward(loaded(depth), tokens)
    expected = []
    for layer in range(LAYERS):
        expected += ["layer", "cut", ("record", layer % depth)]
        if layer + 1 >= depth:
            expected.append(("wait", (layer + 1 - depth) % depth))
    assert trace == expected
    assert len({e for e in trace if isinstance(e, tuple) and e[0] == "record"}) == depth, "events are reused"


def test_nothing_waits_elsewhere(loaded) -> None:
    model = loaded(2)
    for case in (
        {"tokens": 255},
        {"tokens": 4096, "graphs": True},
        {"tokens": 4096, "prompt": False},
        {"tokens": 4096, "warmup": True},
    ):
        assert not [e for e in _forward(model, **case) if isinstance(e, tuple)], case
    assert [e for e in _forward(loaded(0), 4096) if isinstance(e, tuple)] == []


def test_own_layer_loop(forward_state, monkeypatch: pytest.MonkeyPatch) -> None:
    """`end_layer` does for a model with its own loop what the hooks do for the others."""
    import habana_frameworks.torch as htorch

    from vllm_gaudi.runtime import forward_state as state
    from vllm_gaudi.runtime import layer_loop

    calls = []
    monkeypatch.setattr(htorch.core, "mark_step", lambda *a, **k: calls.append("cut"))
    monkeypatch.setattr(
        torch.hpu,
        "Event",
        lambda: SimpleNamespace(record=lambda: calls.append("record"), synchronize=lambda: calls.append("wait")),
    )
    forward_state.run_ahead_depth, forward_state.decode_layers_per_graph = 1, 2
    state.note_forward(True, 512, False, False)
    for _ in range(2):
        layer_loop.end_layer()
    assert calls == ["cut", "record", "wait"] * 2
    calls.clear()
    state.note_forward(False, 4, True, False)
    for _ in range(5):
        layer_loop.end_layer()
    assert calls == ["cut", "cut"]
