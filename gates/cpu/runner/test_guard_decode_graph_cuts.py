# SPDX-License-Identifier: Apache-2.0
"""Guard of the decode-graph-cuts patch: graph cuts in a decode and in a prefill forward."""

from __future__ import annotations

import pytest
import torch

LAYERS = 8


class CutDecoderLayer(torch.nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(("layers", "cuts"), [(1, 8), (2, 4), (3, 2), (4, 2), (0, 0)])
def test_cuts_per_forward(forward_state, monkeypatch: pytest.MonkeyPatch, layers: int, cuts: int) -> None:
    from vllm_gaudi.runtime import forward_state as state
    from vllm_gaudi.v1.worker import hpu_model_runner as mr

    count = []
    model = torch.nn.Sequential(*(CutDecoderLayer() for _ in range(LAYERS)))
    mr.modify_model_layers(model, mr.get_target_layer_suffix_list(None), 1)
    monkeypatch.setattr(mr.htorch.core, "mark_step", lambda *a, **k: count.append(1))
    forward_state.decode_layers_per_graph = layers
    for _ in range(2):
        count.clear()
        state.note_forward(False, 4, True, False)
        model(torch.zeros(1))
        assert len(count) == cuts
    count.clear()
    state.note_forward(True, 512, False, False)
    model(torch.zeros(1))
    assert len(count) == LAYERS, "a prefill is cut after every layer"


def test_layers_of_other_models_compile_once(forward_state) -> None:
    """torch.compile traces the hook: state that changes from layer to layer would compile each anew, then give up."""
    from torch._dynamo.testing import CompileCounter

    from vllm_gaudi.runtime import layer_loop

    counter = CompileCounter()
    disabled, torch._dynamo.config.disable = torch._dynamo.config.disable, False
    try:
        layers = [torch.nn.Linear(3, 3) for _ in range(4)]
        for layer in layers:
            layer.register_forward_hook(lambda module, args, output: output if layer_loop.skip_cut() else output + 1)
        forward_state.decode_layers_per_graph, forward_state.layer = 1, 0
        compiled = [torch.compile(layer, backend=counter) for layer in layers]
        for layer in 2 * compiled:
            layer(torch.ones(2, 3))
    finally:
        torch._dynamo.config.disable = disabled
        torch._dynamo.reset()
    assert counter.frame_count == 1


def test_other_models_are_cut_as_before(settings) -> None:
    from types import SimpleNamespace

    from vllm_gaudi.runtime import gates

    settings()
    config = lambda kind: SimpleNamespace(  # noqa: E731
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type=kind), hf_text_config=None)
    )
    assert gates.decode_layers_per_graph(config("llama")) == 1
    assert gates.decode_layers_per_graph(config("beam")) == 0
    settings(DECODE_LAYERS_PER_GRAPH="4")
    assert gates.decode_layers_per_graph(config("llama")) == 4
