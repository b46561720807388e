# SPDX-License-Identifier: Apache-2.0
"""Muse's layer loop and logits: where graphs end, where the host waits, log-probabilities in rows of 256."""

from types import SimpleNamespace

import pytest
import torch

LAYERS = 8


@pytest.fixture
def trace(model, monkeypatch):
    """`trace(prompt, graphs, tokens)`: what one forward does to the device, in order; state restored afterwards."""
    import habana_frameworks.torch as htorch

    from vllm_gaudi.runtime import forward_state
    from vllm_gaudi.runtime.forward_state import STATE

    harness, seen = model("tiny"), []
    saved = dict(vars(STATE))

    class Event:
        made = 0

        def __init__(self):
            self.name, Event.made = Event.made, Event.made + 1

        def record(self):
            seen.append(("record", self.name))

        def synchronize(self):
            seen.append(("wait", self.name))

    def run(prompt, graphs, tokens=512):
        monkeypatch.setattr(torch.hpu, "Event", Event)
        monkeypatch.setattr(htorch.core, "mark_step", lambda *a, **k: seen.append("cut"))
        STATE.events, Event.made = [], 0
        forward_state.configure(harness.vllm_config)
        forward_state.note_forward(prompt, tokens, graphs, warmup=False)
        seen.clear()
        hooks = [
            layer.register_forward_pre_hook(lambda *a: seen.append("layer")) for layer in harness.model.model.layers
        ]
        harness.hidden(torch.arange(3))
        for hook in hooks:
            hook.remove()
        return seen

    yield run
    vars(STATE).update(saved)


def test_a_long_ungraphed_prefill_waits_for_the_layer_before_the_last(trace):
    """A graph ends after each layer; layer n + 2 is launched once layer n is done."""
    seen = trace(prompt=True, graphs=False)
    assert seen.count("layer") == LAYERS
    at = [i for i, entry in enumerate(seen) if entry == "layer"]
    for layer in range(LAYERS):
        end = at[layer + 1] if layer + 1 < LAYERS else len(seen)
        after = [entry for entry in seen[at[layer] + 1 : end] if entry != "cut"]
        assert "cut" in seen[at[layer] + 1 : end]
        waits = [("wait", (layer - 1) % 2)] if layer else []
        assert after == [("record", layer % 2), *waits], layer


@pytest.mark.parametrize(
    ("prompt", "graphs", "tokens"), [(True, True, 512), (True, False, 255), (False, True, 512), (False, False, 512)]
)
def test_nothing_waits_in_graphs_in_short_prompts_and_in_decode(trace, prompt, graphs, tokens):
    seen = trace(prompt, graphs, tokens)
    assert seen.count("layer") == LAYERS
    assert not [entry for entry in seen if isinstance(entry, tuple)]


def test_decode_ends_no_graph_between_layers_and_a_decoder_layer_would(trace, model):
    from vllm_gaudi.models.muse_spark.model import MuseSparkBlock
    from vllm_gaudi.v1.worker import hpu_model_runner as runner

    network = model("tiny").model
    suffixes = runner.get_target_layer_suffix_list("muse_spark")

    def hooked():
        runner.modify_model_layers(network, suffixes)
        hooks = [layer._forward_hooks for layer in network.model.layers]
        count = sum(map(len, hooks))
        for entry in hooks:
            entry.clear()
        return count

    assert hooked() == 0
    assert trace(prompt=False, graphs=True).count("cut") == 0
    named = type("MuseSparkDecoderLayer", (MuseSparkBlock,), {})
    try:
        for layer in network.model.layers:
            layer.__class__ = named
        assert hooked() == LAYERS
    finally:
        for layer in network.model.layers:
            layer.__class__ = MuseSparkBlock


def _prompt_logprobs(network, hidden, ids):
    """Through the runner's own function: (log-probabilities, ids, ranks) of every row."""
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.sample.sampler import Sampler

    from vllm_gaudi.v1.worker.hpu_model_runner import HPUModelRunner

    rows = len(ids) - 1
    target = LogprobsTensors.empty_cpu(rows, 4)
    runner = SimpleNamespace(
        model=network,
        sampler=Sampler(),
        device="hpu",
        max_num_tokens=4096,
        requests={"r": SimpleNamespace(prompt_token_ids=ids, num_computed_tokens=0)},
        input_batch=SimpleNamespace(num_prompt_logprobs={"r": 3}, in_progress_prompt_logprobs_cpu={"r": target}),
    )
    runner._gather_prompt_logprobs_hpu = HPUModelRunner._gather_prompt_logprobs_hpu.__get__(runner)
    scheduled = SimpleNamespace(num_scheduled_tokens={"r": len(ids)})
    with torch.inference_mode():
        HPUModelRunner._get_prompt_logprobs_dict(runner, {"r": hidden[None].to("hpu")}, scheduled)
    torch.hpu.synchronize()
    return target


def _wrong(network, target, hidden, ids) -> float:
    """Largest distance of log-probabilities from one softmax over all rows; infinite where ids or ranks differ."""
    with torch.inference_mode():
        logprobs = network.compute_logits(hidden[:-1].to("hpu")).cpu().log_softmax(-1)
    following = torch.tensor(ids[1:])
    own = logprobs.gather(1, following[:, None])
    top = logprobs.topk(3, dim=-1)
    ranks = (logprobs >= own).sum(-1)
    close = (target.selected_token_ranks.long() - ranks).abs()
    if not target.logprob_token_ids[:, 0].long().equal(following) or close.max() > 1 or close.sum() > len(ids) // 100:
        return float("inf")
    return float(
        max((target.logprobs[:, 0] - own[:, 0]).abs().max(), (target.logprobs[:, 1:] - top.values).abs().max())
    )


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 4096])
def test_prompt_logprobs_in_rows_of_256_are_those_of_one_piece(model, rows):
    network = model("tiny", dtype="float32").model
    draw = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows + 1, 128, generator=draw)
    ids = torch.randint(211, (rows + 1,), generator=draw).tolist()
    assert _wrong(network, _prompt_logprobs(network, hidden, ids), hidden, ids) <= 2e-6


def test_rows_scored_for_the_wrong_token_are_seen(model, monkeypatch):
    """Control: the ids of a chunk begin one place early."""
    from vllm_gaudi.runtime import prompt_logprobs

    original = prompt_logprobs.in_chunks

    def shifted(runner, hidden, num_logits, num_logprobs, token_ids, start, target):
        return original(runner, hidden, num_logits, num_logprobs, token_ids.roll(1), start, target)

    monkeypatch.setattr(prompt_logprobs, "in_chunks", shifted)
    network = model("tiny", dtype="float32").model
    draw = torch.Generator().manual_seed(9)
    hidden = torch.randn(258, 128, generator=draw)
    ids = torch.randint(211, (258,), generator=draw).tolist()
    assert _wrong(network, _prompt_logprobs(network, hidden, ids), hidden, ids) > 2e-6
