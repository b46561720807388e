# SPDX-License-Identifier: Apache-2.0
"""Every meter counts a known program."""

import json
import re
import subprocess
import sys
import textwrap
from dataclasses import fields
from pathlib import Path

import habana_frameworks.torch as htorch
import pytest
import torch

from gates.hpusim import compile as hpusim_compile
from gates.hpusim import meters, probe, testing
from gates.hpusim.meters import launches
from gates.hpusim.meters.counts import Counts
from gates.hpusim.meters.meter import Meter, attention_workspace


@pytest.fixture(autouse=True)
def _lazy(monkeypatch):
    monkeypatch.setattr("gates.hpusim.runtime.is_lazy", lambda: True)


def test_nothing_is_counted_outside():
    with meters.measure() as meter:
        pass
    torch.ones(2, device="hpu") + 1
    assert meter.total().summary()["ops"]["total"] == 0
    assert meter not in probe.listeners


def test_every_event_is_known():
    """An unknown one ends the process that is metered."""
    folder = Path(probe.__file__).parent
    emitted = {kind for path in folder.rglob("*.py") for kind in re.findall(r'emit\("(\w+)"', path.read_text())}
    assert len(emitted) > 10
    assert {kind for kind in emitted if not hasattr(Meter, f"_{kind}")} == set()


def test_cuts_and_launches():
    x = torch.ones(2, device="hpu")
    with meters.measure() as meter:
        y = x + 1
        y = y.view(1, 2)  # a view is no work
        htorch.core.mark_step()
        htorch.core.mark_step()  # nothing to launch
        y * 2
    total = meter.total()
    assert (total.mark_steps, total.empty_mark_steps, total.launches) == (2, 1, 2)
    assert total.ops == {"aten::add.Tensor": 1, "aten::mul.Tensor": 1}


def test_rare_names_are_not_lost_among_frequent_ones():
    """A warm-up captures hundreds of graphs, and a layer has one MoE launch beside scores of other operators."""
    counts = Counts()
    counts.captures.update({f"graph {number}": 1 for number in range(300)})
    counts.ops.update({**{f"aten::op{number}": 9 for number in range(50)}, "hpu::mixture_of_experts.fp8": 1})
    summary = counts.summary()
    assert summary["captures"]["total"] == len(summary["captures"]["by"]) == 300
    assert summary["ops"]["by"]["hpu::mixture_of_experts.fp8"] == 1


def test_values_of_the_host_travel():
    """A tensor made from Python values on the card was copied there, and the host waited."""
    card = torch.ones(4, device="hpu")
    with meters.measure() as meter:
        card + 1
        torch.tensor([1.0, 2.0], device="hpu")
        torch.tensor(3, device="hpu", dtype=torch.int32)
        card.new_tensor([1.0])
        with torch.device("hpu"):
            torch.tensor(data=[1.0])
            card.new_tensor([1.0, 2.0])
            torch.zeros(9)
        torch.full((2,), 3.0, device="hpu")
        torch.tensor([], device="hpu")
        torch.tensor([1.0])
        card * 2
    total = meter.total()
    assert (total.h2d.count, total.h2d.bytes, total.h2d.blocking) == (5, 8 + 4 + 4 + 4 + 8, 5)
    assert total.launches == 1, "what is written to the card cuts no graph"
    assert all("test_hpusim_meters.py" in caller for caller in total.h2d.callers)


def test_copies_with_bytes_and_caller():
    host, card = torch.ones(4), torch.ones(4, device="hpu")
    with meters.measure() as meter:
        host.to("hpu", non_blocking=True)
        card.copy_(host)
        card.cpu()
        host[:2] = card[:2]
        torch.ones(8, device="hpu")  # made there: no copy
        card[[0, 1]]  # a Python list of indices travels
    total = meter.total()
    assert (total.h2d.count, total.h2d.bytes, total.h2d.blocking) == (3, 16 + 16 + 16, 1)
    assert (total.d2h.count, total.d2h.bytes, total.d2h.blocking, total.d2h.largest()) == (2, 24, 2, 16)
    assert all("test_hpusim_meters.py" in caller for caller in total.h2d.callers)


@pytest.mark.parametrize(
    ("read", "operation"),
    [
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: bool(x.any()), "aten::_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "copy to host"),
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 0], "aten::index.Tensor"),
        (lambda x: x.masked_select(x > 0), "aten::masked_select"),
        (lambda x: x.unique(), "aten::_unique2"),
        (lambda x: torch.equal(x, x), "aten::equal"),
        (lambda x: x.repeat_interleave(x.int()), "aten::repeat_interleave.Tensor"),
        (lambda x: torch.hpu.synchronize(), "synchronize"),
        (lambda x: torch.accelerator.synchronize(), "synchronize"),
        (lambda x: torch.hpu.current_stream().synchronize(), "stream"),
    ],
)
def test_syncs(read, operation):
    x = torch.ones(3, device="hpu")
    with meters.measure() as meter:
        x + 1
        read(x)
    found = {name.split(" @ ")[0] for name in meter.total().syncs}
    assert found == {operation}
    assert sum(meter.total().syncs.values()) == 1


def test_what_does_not_block_is_no_sync():
    x = torch.ones(3, device="hpu")
    with meters.measure() as meter:
        x.to("cpu", non_blocking=True)
        x[torch.zeros(2, dtype=torch.int64, device="hpu")]
        torch.repeat_interleave(x, x.int(), output_size=3)
        torch.where(x > 0, x, 0.0)
        torch.hpu.Event().query()
    assert meter.total().d2h.count == 1
    assert not meter.total().syncs


def test_events():
    with meters.measure() as meter:
        event = torch.hpu.Event()
        event.synchronize()  # never recorded: waits for nothing, and that is worth knowing
        event.record()
        torch.hpu.current_stream().wait_event(event)
        event.synchronize()
    total = meter.total()
    assert (total.event_records, total.event_waits, total.event_waits_unrecorded) == (1, 3, 1)


def test_graphs_by_key_and_compiles_after_warmup():
    class Layer(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            htorch.core.mark_step()
            return y * 2

    module = htorch.hpu.wrap_in_hpu_graph(Layer())
    with meters.measure() as meter:
        module(torch.ones(2, device="hpu"))
        meter.warmed_up = True
        module(torch.ones(2, device="hpu"))
        module(torch.ones(2, device="hpu"))
        module(torch.ones(3, device="hpu"))
    total = meter.total()
    assert sorted(total.captures.values()) == [1, 1]
    assert list(total.replays.values()) == [2]
    assert meter.compiles_after_warmup == ["Layer 3"]
    assert (total.launches, total.launches_in_graph) == (8, 8), "one cut inside: two segments each time"


def moe_arguments(experts=4):
    w12 = [torch.ones(8, 4, dtype=torch.bfloat16, device="hpu") for _ in range(experts)]
    w3 = [torch.ones(4, 4, dtype=torch.bfloat16, device="hpu") for _ in range(experts)]
    x = torch.ones(2, 4, dtype=torch.bfloat16, device="hpu")
    table = torch.zeros(2, 1, dtype=torch.int64, device="hpu")
    weights = torch.ones(2, 1, dtype=torch.bfloat16, device="hpu")
    return {
        "hidden_states": x, "expert_routing_table": table, "router_weights": weights, "w12": w12, "w3": w3,
        "permuted_weights": True, "activation": "silu", "experts_min": 0, "experts_max": experts - 1,
    }  # fmt: skip


def test_moe_launches_and_their_inputs():
    with meters.measure() as meter:
        torch.ops.hpu.mixture_of_experts.fused_weights(**moe_arguments())
    total = meter.total()
    assert (total.moe_launches, total.moe_tensor_inputs, total.moe_tensor_inputs_max) == (1, 11, 11)
    assert total.moe_tensor_reprs == 0


def test_moe_reprs_are_told_from_others():
    x = torch.ones(2, device="hpu")
    with meters.measure() as meter:
        mixture_of_experts = repr
        mixture_of_experts(x)
        str(x)
    total = meter.total()
    assert (total.tensor_reprs, total.moe_tensor_reprs) == (2, 1)
    assert (total.d2h.count, total.d2h.bytes) == (2, 16), "what is printed the host has read"
    assert [name.split(" @ ")[0] for name in total.syncs] == ["repr", "repr"]


def test_attention_workspace():
    q = torch.ones(1, 4, 8, 16, dtype=torch.bfloat16, device="hpu")
    k = torch.ones(1, 2, 32, 16, dtype=torch.bfloat16, device="hpu")
    mask = torch.zeros(1, 1, 8, 32, dtype=torch.bfloat16, device="hpu")
    from habana_frameworks.torch.hpex.kernels import FusedSDPA

    with meters.measure() as meter:
        FusedSDPA.apply(q, k, k, mask, 0.0, False)
    assert meter.total().attention_calls == 1
    assert meter.total().attention_workspace == 4 * 4 * 8 * 32
    assert attention_workspace((q, k, k, None)) == 0


def test_memory_high_water():
    with meters.measure() as meter:
        x = torch.ones(1 << 16, device="hpu")
        x + 1
    assert meter.total().memory_peak >= 2 * 4 * (1 << 16)


def test_unknown_events_are_an_error():
    with meters.measure(), pytest.raises(NotImplementedError, match="'surprise'"):
        probe.emit("surprise")


def test_steps_are_sorted_by_kind():
    meter = meters.Meter()
    for prompt, decode, grammar, copies in ((True, False, False, 1), (False, True, False, 2), (False, True, True, 4)):
        meter.begin_step()
        meter.in_step = True
        meter.step_prompt, meter.step_decode, meter.step_grammar = prompt, decode, grammar
        for _ in range(copies):
            meter("d2h", 8, {"blocking": False, "caller": "here"})
        meter.end_step()
    assert meter.steps == {"prefill": 1, "decode": 1, "decode+grammar": 1}
    assert [meter.phases[kind].d2h.count for kind in meter.steps] == [1, 2, 4]
    assert [record["d2h"] for record in meter.records] == [1, 2, 4]


def test_compiled_calls_and_mixed_operators():
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    x = torch.ones(2, device="hpu")
    with meters.measure() as meter:
        run = hpusim_compile.hpu_backend(graph, [x])
        run(x)
        run(x)
        x + torch.ones(2)
    total = meter.total()
    assert total.compiled_calls == 2
    assert list(total.compiles.values()) == [1]
    assert [name.split(" @ ")[0] for name in total.mixed] == ["aten::add.Tensor"]


def test_no_counter_is_without_a_test():
    """Every counter that a summary holds is asserted by name, here or with the collectives."""
    names = ("test_hpusim_meters.py", "test_hpusim_collectives.py")
    text = "".join((Path(__file__).parent / name).read_text() for name in names)
    assert [field.name for field in fields(Counts) if f".{field.name}" not in text] == []


def test_launch_model_reproduces_the_port_pages():
    layer = {"launches": 7 * 10}
    counted = {"steps": {"decode": 10}, "phases": {"decode": {"launches": 10 * (2 * 7 + 3)}},
               "layers": {"decode": {"0": layer, "1": layer}}}  # fmt: skip
    beam = launches.predict(counted, "decode", 52)
    assert beam.launches == 367
    assert 38 < beam.host_ms < 41
    assert "3.0 + 7.00 x 52 layers, 105.0 us a launch" in str(beam)
    assert pytest.approx(28.7e3) == launches.MUSE_US_PER_LAUNCH * 313
    with pytest.raises(ValueError, match="no 'prefill' step"):
        launches.predict(counted, "prefill", 52)
    for wrong in ({"layers": -3}, {"layers": 1, "us_per_launch": -1.0}):
        with pytest.raises(ValueError, match="neither can be negative"):
            launches.predict(counted, "decode", **wrong)


def test_a_process_writes_its_summary_at_exit(tmp_path):
    script = """
        import torch
        x = torch.ones(2, device="hpu") + 1
        x.cpu()
    """
    env = testing.environment(HPUSIM_METERS=str(tmp_path / "meters-{pid}.json"))
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=env, check=True, timeout=60)
    (summary,) = [json.loads(path.read_text()) for path in tmp_path.glob("meters-*.json")]
    assert summary["phases"]["outside"]["d2h"]["count"] == 1
    assert summary["overhead"]["microseconds_per_event"] > 0
