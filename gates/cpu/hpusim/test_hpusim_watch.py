# SPDX-License-Identifier: Apache-2.0
"""Where the meters file what they count: phases, kinds of step and layers of a runner, watched without an engine."""

import threading
from types import SimpleNamespace

import torch

from gates.hpusim import meters, probe
from gates.hpusim.meters import watch


class Runner:
    """Entry points of the plug-in's runner, each one operator of work; its model has two layers."""

    def __init__(self):
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.ReLU()])
        self.x = torch.ones(4, device="hpu")

    def load_model(self):
        torch.ones(8).to("hpu")

    def initialize_kv_cache(self):
        self.x + 1

    def profile_run(self):
        self.x + 1

    def warmup_model(self):
        self.execute_model(None)  # the same functions, but no step

    def _execute_model_generic(self, token_ids, position_ids, attn_metadata):
        for layer in self.model.layers:
            layer(self.x)

    def execute_model(self, output):
        for is_prompt in output or ():
            self._execute_model_generic(None, None, SimpleNamespace(is_prompt=is_prompt))

    def sample_tokens(self, grammar):
        self.x.argmax().cpu()
        return "tokens"


def test_phases_steps_and_layers_of_a_runner(monkeypatch):
    monkeypatch.setattr("gates.hpusim.runtime.is_lazy", lambda: True)  # layers are watched in that mode

    class Watched(Runner):
        pass

    flushed = []
    with meters.measure() as meter:
        watch.wrap(meter, Watched, lambda: flushed.append(1))
        runner = Watched()
        for part in ("load_model", "profile_run", "initialize_kv_cache", "warmup_model"):
            getattr(runner, part)()
        for forwards, grammar in (
            ([True], None),
            ([False], None),
            ([True, False], None),
            ([False], "mask"),
            ([], None),
        ):
            runner.execute_model(forwards)
            runner.sample_tokens(grammar)
        worker = threading.Thread(target=lambda: probe.emit("event_record"))
        worker.start()
        worker.join()
    assert meter.warmed_up
    assert watch.missing == []
    assert meter.steps == {"prefill": 1, "decode": 1, "mixed": 1, "decode+grammar": 1, "idle": 1}
    assert len(flushed) == len(meter.records) == 5
    assert meter.phases["load"].h2d.bytes == 32
    assert {name: sum(meter.phases[name].ops.values()) for name in ("profile", "kv_cache")} == {
        "profile": 1, "kv_cache": 1
    }  # fmt: skip
    assert meter.phases["background"].event_records == 1
    per_step = {kind: meter.phases[kind].ops["aten::relu"] for kind in meter.steps}
    assert per_step == {"prefill": 2, "decode": 2, "mixed": 4, "decode+grammar": 2, "idle": 0}
    assert {kind: sorted(layers) for kind, layers in meter.layers.items()} == {
        kind: ["0", "1"] for kind in per_step if per_step[kind]
    }  # fmt: skip
    assert [layer.ops for layer in meter.layers["mixed"].values()] == [{"aten::relu": 2}] * 2
    assert all(meter.phases[kind].d2h.count == 1 for kind in meter.steps)


def test_a_runner_without_an_entry_point_is_listed(monkeypatch):
    monkeypatch.setattr(watch, "missing", [])

    class Newer(Runner):
        warmup_model = None

    watch.wrap(meters.Meter(), Newer, lambda: None)
    assert watch.missing == ["HPUModelRunner.warmup_model"]
