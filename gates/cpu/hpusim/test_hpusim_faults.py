# SPDX-License-Identifier: Apache-2.0
"""Every fault model: off it changes nothing, on it does what its description says. In the pure-Python lane."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fault_scenarios import LOST_RANK, SCENARIOS
from hpusim_ops import ROOT, randn

from gates.hpusim import faults, memory
from gates.hpusim.faults import collective, config, garbage, kv_blocks
from gates.hpusim.faults.attention_workspace import call_bytes
from gates.hpusim.faults.hooks import Undo
from gates.hpusim.ops.sdpa import FusedSDPA
from gates.hpusim.runtime import mark_step, synchronize
from gates.hpusim.settings import settings
from gates.hpusim.streams import Event

pytestmark = pytest.mark.skipif(
    os.environ.get("HPUSIM_NATIVE") == "1" or "habana_frameworks" not in sys.modules,
    reason="needs the emulated Gaudi's pure-Python lane (python -m gates.hpusim.install)",
)


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "HPUSIM_FAULT_COSMIC_RAY",
            "on",
            "COSMIC_RAY is not a fault model; there are HPUSIM_FAULT_ATTENTION_WORKSPACE",
        ),
        ("HPUSIM_FAULT_RUN_AHEAD", "1", "expected on, unset it"),
        ("HPUSIM_FAULT_COLLECTIVE", "die,when=3", "unknown option 'when'; there are: rank, after, seconds"),
        ("HPUSIM_FAULT_RUN_AHEAD", "on,x=1", "unknown option 'x'; there are: none"),
        ("HPUSIM_FAULT_COLLECTIVE", "slow,seconds=abc", "seconds='abc' is not a number of at least 0"),
        ("HPUSIM_FAULT_POISON", "kv,value=zero", "value='zero', expected huge or nan"),
        ("HPUSIM_FAULT_ATTENTION_WORKSPACE", "oom,limit=-1", "limit='-1' is not a size like 64M"),
    ],
)
def test_unknown_names_are_refused(name, value, message):
    with pytest.raises(config.FaultError, match=message):
        config.from_environment({name: value, "PATH": "/bin"})


def test_options_are_read_with_their_defaults():
    (fault,) = config.from_environment({"HPUSIM_FAULT_COLLECTIVE": "slow,rank=3", "HPUSIM_FAULTY": "no"})
    assert (fault.kind, fault.number("rank"), fault.number("seconds")) == ("slow", 3, 1)
    assert config.parse("ATTENTION_WORKSPACE", "nan,limit=64M").size("limit") == 64 << 20
    assert config.parse("ATTENTION_WORKSPACE", "oom").size("limit") is None
    for text in ("nan,limit=much", "nan,limit=M"):
        with pytest.raises(config.FaultError, match="is not a size like 64M"):
            config.parse("ATTENTION_WORKSPACE", text).size("limit")
    with pytest.raises(config.FaultError, match="rank='-1' is not a number of at least 0"):
        config.parse("COLLECTIVE", "die,rank=-1").number("rank")


def test_a_process_with_an_unknown_fault_does_not_start():
    environment = {**os.environ, "HPUSIM_FAULT_TYPO": "on", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode != 0
    assert "HPUSIM_FAULT_TYPO is not a fault model" in done.stderr


def test_every_documented_model_has_a_module():
    for model, (kinds, _) in config.MODELS.items():
        if model != "POISON":  # kv wraps the plug-in, tested where it is loaded
            faults.start(config.parse(model, kinds[0]))()
        assert f"| {config.PREFIX}{model} |" in config.__doc__


def test_every_kind_of_every_model_is_shown_on_a_served_check():
    shown = {(model, value.partition(",")[0]) for model, value, _ in SCENARIOS.values() if model}
    shown |= {("COLLECTIVE", fault.partition(",")[0]) for fault in LOST_RANK if fault}
    kinds = {(model, kind) for model, (kinds, _) in config.MODELS.items() for kind in kinds}
    assert kinds - shown == {("POISON", "all")}, "the other two kinds of it at once"


@pytest.mark.parametrize("model", faults.PURE_LANE_ONLY)
def test_models_the_strict_lane_cannot_show_are_refused_there(monkeypatch, model):
    monkeypatch.setenv("HPUSIM_NATIVE", "1")
    settings.cache_clear()
    try:
        with pytest.raises(config.FaultError, match=f"{model} needs the pure-Python lane: unset HPUSIM_NATIVE"):
            faults.start(config.parse(model, "on"))
    finally:
        monkeypatch.undo()
        settings.cache_clear()


# --- attention workspace ---------------------------------------------------------------------------------------------


def attention(rows=8, keys=32, bias=True):
    q, k = randn((1, 4, rows, 16), 1).to("hpu"), randn((1, 2, keys, 16), 2).to("hpu")
    mask = torch.zeros(1, 1, rows, keys).to("hpu") if bias else None
    return FusedSDPA.apply(q, k, k, mask)


def test_workspace_of_a_biased_call_is_kept():
    attention()
    before = memory.memory_allocated()
    attention()
    assert memory.memory_allocated() == before
    with faults.enabled("ATTENTION_WORKSPACE", "oom"):
        attention(bias=False)
        assert memory.memory_allocated() == before
        attention()
        assert memory.memory_allocated() == before + 4 * 4 * 8 * 32
        attention(rows=4)
        assert memory.memory_allocated() == before + 4 * 4 * 8 * 32
        attention(keys=64)
        assert memory.memory_allocated() == before + 4 * 4 * 8 * 64
    assert memory.memory_allocated() == before


def test_workspace_matches_the_measured_size():
    q, k = torch.empty(1, 16, 4096, 64, device="meta"), torch.empty(1, 2, 65536, 64, device="meta")
    assert call_bytes(q, k) == 16 << 30


@pytest.mark.parametrize("kind", ["oom", "nan"])
def test_workspace_over_the_limit(kind):
    with faults.enabled("ATTENTION_WORKSPACE", f"{kind},limit=4K"):
        assert attention().isfinite().all()  # 4 KiB fit
        assert attention(rows=9, bias=False).isfinite().all()
        if kind == "oom":
            with pytest.raises(torch.OutOfMemoryError, match="FusedSDPA keeps 4608 bytes of workspace"):
                attention(rows=9)
        else:
            assert attention(rows=9).isnan().all()
        assert attention().isfinite().all()


# --- run-ahead -------------------------------------------------------------------------------------------------------


def layers(count, wait_for=None):
    """A prompt forward: every layer makes and drops 1 MiB; `wait_for` = 1 waits for the event of the layer before."""
    events = []
    memory.reset_peak_memory_stats()
    x = torch.zeros(1 << 18, device="hpu")
    start = memory.memory_allocated()
    for _ in range(count):
        x = x * 2 + 1
        mark_step()
        events.append(Event())
        events[-1].record()
        if wait_for and len(events) > wait_for:
            events[-1 - wait_for].synchronize()
    return (memory.max_memory_allocated() - start) >> 20


def test_run_ahead_piles_up_intermediates_unless_the_host_waits():
    calm = layers(12)
    assert calm <= 3
    with faults.enabled("RUN_AHEAD", "on"):
        assert layers(12) >= 20
        bounded = layers(12, wait_for=1)
        assert bounded < 8
        assert layers(24, wait_for=1) == bounded
        before = memory.memory_allocated()
        layers(3)
        assert memory.memory_allocated() > before
        synchronize()
        assert memory.memory_allocated() <= before
    assert layers(12) == calm


def test_reading_a_value_lets_the_device_catch_up():
    with faults.enabled("RUN_AHEAD", "on"):
        synchronize()
        before = memory.memory_allocated()
        total = torch.ones(1 << 16, device="hpu").sum()
        assert memory.memory_allocated() > before + (1 << 18)
        total.item()
        assert memory.memory_allocated() <= before + 4
        torch.ones(1 << 16, device="hpu")
        assert memory.memory_allocated() > before + (1 << 17)
        torch.ones(1, device="hpu").cpu()
        assert memory.memory_allocated() <= before + 8


def test_run_ahead_meets_the_memory_limit(monkeypatch):
    def chain():
        x = torch.zeros(1 << 20, device="hpu")
        for _ in range(64):
            x = x + 1
        return int(x[0].item())

    limit = memory.memory_allocated() + (50 << 20)
    monkeypatch.setenv("HPUSIM_MEM_GIB", str(limit / 2**30))
    settings.cache_clear()
    try:
        assert chain() == 64
        with faults.enabled("RUN_AHEAD", "on"):
            with pytest.raises(torch.OutOfMemoryError, match="emulated HPU out of memory"):
                chain()
    finally:
        monkeypatch.undo()
        settings.cache_clear()


# --- asynchronous copies ---------------------------------------------------------------------------------------------


def test_copy_holds_garbage_until_waited_for():
    device = torch.arange(5, device="hpu")
    assert device.to("cpu", non_blocking=True).tolist() == [0, 1, 2, 3, 4]
    with faults.enabled("ASYNC_COPY", "on"):
        host = device.to("cpu", non_blocking=True)
        assert host.tolist() == [garbage.INTEGER] * 5
        early = Event()
        early.record()
        later = device.float().to("cpu", non_blocking=True)
        assert later.isnan().all()
        early.synchronize()
        assert host.tolist() == [0, 1, 2, 3, 4]
        assert later.isnan().all()
        synchronize()
        assert later.tolist() == [0, 1, 2, 3, 4]
        assert device.to("cpu").tolist() == [0, 1, 2, 3, 4]


def test_asking_until_it_is_done_is_waiting():
    """A program may poll an event instead of waiting for it."""
    with faults.enabled("ASYNC_COPY", "on"):
        host = torch.ones(2, device="hpu").to("cpu", non_blocking=True)
        done = Event()
        done.record()
        assert host.isnan().all()
        assert done.query()
        assert host.tolist() == [1, 1]


def test_an_event_recorded_before_the_copy_does_not_cover_it():
    with faults.enabled("ASYNC_COPY", "on"):
        before = Event()
        before.record()
        host = torch.zeros(3)
        host.copy_(torch.ones(3, device="hpu"), non_blocking=True)
        before.synchronize()
        assert host.isnan().all()
    assert host.tolist() == [1, 1, 1]


# --- poison ----------------------------------------------------------------------------------------------------------


def test_fresh_memory_is_poisoned():
    with faults.enabled("POISON", "fresh,value=nan"):
        assert torch.empty(4, device="hpu").isnan().all()
        assert torch.zeros(2, device="hpu").new_empty(3).isnan().all()
        assert torch.empty_like(torch.zeros(2, device="hpu", dtype=torch.bfloat16)).isnan().all()
        assert (torch.empty(3, dtype=torch.int64, device="hpu") == garbage.INTEGER).all()
        assert torch.empty(3, dtype=torch.float8_e4m3fn, device="hpu").float().isnan().all()
        assert torch.empty(3, dtype=torch.bool, device="hpu").all()
        assert (torch.zeros(4, device="hpu") == 0).all()
    with faults.enabled("POISON", "fresh"):
        assert (torch.empty(4, device="hpu") == garbage.HUGE).all()
        assert (torch.empty_permuted((2, 3), (1, 0), device="hpu") == garbage.HUGE).all()
        grown = torch.ones(2, device="hpu").resize_(5)
        assert grown.tolist() == [1, 1] + [garbage.HUGE] * 3
        assert torch.ones(2).resize_(2).tolist() == [1, 1]
    with pytest.raises(config.FaultError, match="value='low', expected huge or nan"):
        faults.start(config.parse("POISON", "fresh,value=low"))


def test_null_padding_and_freed_blocks_are_poisoned():
    cache = torch.zeros(6 * 4, 2, 3)
    kv_blocks.poison([(cache, cache.clone()), torch.zeros(5, 2)], 6, 4, {2}, garbage.HUGE)
    junk = (cache == garbage.HUGE).flatten(1).all(1).unflatten(0, (6, 4)).all(1)
    assert junk.tolist() == [True, False, True, False, False, True]
    assert (cache.unflatten(0, (6, 4))[[1, 3, 4]] == 0).all()


def test_modules_imported_later_are_wrapped_once(monkeypatch, tmp_path):
    (tmp_path / "hpusim_late_module.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    finder = kv_blocks._AfterImport({"hpusim_late_module": lambda module: seen.append(module.VALUE)})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import hpusim_late_module  # noqa: F401

    sys.modules.pop("hpusim_late_module")
    assert seen == [1]


class _KVBlock:
    def __init__(self, block_id, ref_cnt, block_hash=None, is_null=False):
        self.block_id, self.ref_cnt, self.block_hash, self.is_null = block_id, ref_cnt, block_hash, is_null


def test_freed_blocks_are_those_nobody_can_hit():
    """A block that the prefix cache still knows is no junk until it is evicted."""

    class BlockPool:
        def free_blocks(self, ordered_blocks):
            for block in ordered_blocks:
                block.ref_cnt -= 1

        def _maybe_evict_cached_block(self, block):
            return block.block_hash is not None

    undo = Undo()
    kv_blocks._freed.clear()
    kv_blocks._wrap_pool(SimpleNamespace(BlockPool=BlockPool), undo)
    pool, cached = BlockPool(), _KVBlock(4, 1, block_hash="h")
    pool.free_blocks([_KVBlock(1, 1), _KVBlock(2, 2), _KVBlock(0, 1, is_null=True), cached])
    assert kv_blocks._freed == {1}
    pool._maybe_evict_cached_block(cached)
    assert kv_blocks._freed == {1, 4}
    undo()
    pool.free_blocks([_KVBlock(7, 1)])
    assert kv_blocks._freed == {1, 4}
    kv_blocks._freed.clear()


def test_poison_comes_before_every_step_of_the_runner():
    class HPUModelRunner:
        block_size = 4

        def __init__(self):
            self.kv_caches = [(torch.zeros(5 * 4, 2, 3), torch.zeros(5 * 4, 2, 3))]

        def execute_model(self, work):
            return work, self.kv_caches[0][1].flatten(1).sum(1).unflatten(0, (5, 4)).sum(1)

    undo = Undo()
    kv_blocks._wrap_runner(SimpleNamespace(HPUModelRunner=HPUModelRunner), undo, garbage.HUGE)
    kv_blocks._freed.add(2)
    work, sums = HPUModelRunner().execute_model("step")
    assert work == "step"
    assert (sums != 0).tolist() == [True, False, True, False, True]
    assert not kv_blocks._freed
    undo()
    assert (HPUModelRunner().execute_model("step")[1] == 0).all()


# --- round trips -----------------------------------------------------------------------------------------------------


def round_trip(cut=False, change=False):
    wide = torch.full((4, 2), 1.00001, device="hpu")
    narrow = wide.to(torch.bfloat16)
    if cut:
        mark_step()
    if change:
        narrow.add_(1)
    return narrow.reshape(2, 4).float()


@pytest.mark.parametrize("inference", [False, True])
def test_round_trips_inside_a_graph_are_dropped(inference):
    assert (round_trip() == 1).all()
    with faults.enabled("ROUND_TRIP", "on"), torch.inference_mode(inference):
        assert (round_trip() == 1.00001).all()
        assert (round_trip(cut=True) == 1).all()
        assert (round_trip(change=True) == 2).all()
    assert (round_trip() == 1).all()


@pytest.mark.parametrize("inference", [False, True])
def test_round_trips_through_views_and_promotion_are_dropped(inference):
    x = torch.full((2, 2), 1.00001, device="hpu")
    wide = torch.zeros(2, 2, device="hpu")
    trips = {
        "slice": lambda: x.bfloat16()[1:].float(),
        "transpose": lambda: x.bfloat16().t().float(),
        "transposed source": lambda: x.t().bfloat16()[:, 1].float(),
        "promotion": lambda: x.bfloat16() + wide,
        "where": lambda: torch.where(wide == 0, x.bfloat16(), wide),
        "concatenation": lambda: torch.cat([x.bfloat16(), wide])[:2],
        "sum": lambda: x.bfloat16()[0].sum(dtype=torch.float32) - 1.00001,
    }
    with torch.inference_mode(inference):
        assert not any((call() == 1.00001).any() for name, call in trips.items() if name != "sum")
        with faults.enabled("ROUND_TRIP", "on"):
            for name, call in trips.items():
                assert (call() - 1.00001).abs().max() < 1e-7, name
            assert ((x.bfloat16() + 0) == 1).all(), "an operator on bf16 rounds"
            part = x.bfloat16()
            part[0] = 3
            assert part.float().tolist() == [[3, 3], [x[0, 0].item()] * 2]


# --- collectives -----------------------------------------------------------------------------------------------------


def _rank(rank, port, fault, seconds, results):
    """Three all-reduces on one of two ranks; reports each sum, then how often the fault slept."""
    import datetime

    import torch.distributed as dist

    naps = []
    if fault:
        faults.start(config.parse("COLLECTIVE", fault))
        if fault.startswith("slow"):
            collective.time.sleep = naps.append
    address = f"tcp://127.0.0.1:{port}"
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("hccl", init_method=address, rank=rank, world_size=2, timeout=timeout)
    x = torch.ones(2, device="hpu")
    for _ in range(3):
        dist.all_reduce(x)
        results.put((rank, x[0].item()))
    results.put((rank, naps))
    results.close()
    results.join_thread()
    os._exit(0)


def two_ranks(fault=None, seconds=30):
    """Exit codes and reports of two forked ranks; `seconds`: patience in a collective, and with the last rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [context.Process(target=_rank, args=(rank, port, fault, seconds, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    try:
        multiprocessing.connection.wait([process.sentinel for process in ranks], timeout=60)
        for process in ranks:
            process.join(seconds)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    reports = {0: [], 1: []}
    while True:
        try:
            rank, value = results.get(timeout=0.2)
        except queue.Empty:
            return [process.exitcode for process in ranks], reports
        reports[rank].append(value)


def test_ranks_agree_without_a_fault():
    assert two_ranks() == ([0, 0], {0: [2, 4, 8, []], 1: [2, 4, 8, []]})


def test_a_rank_that_dies_takes_the_other_with_it():
    codes, reports = two_ranks("die,rank=1,after=1")
    assert codes[1] == collective.EXIT_CODE
    assert codes[0] not in (0, collective.EXIT_CODE)
    assert reports == {0: [2], 1: [2]} or reports == {0: [2], 1: []}  # what a dying process reports may be lost


def test_a_rank_that_hangs_makes_the_other_fail():
    codes, reports = two_ranks("hang,rank=0,after=1", seconds=3)
    assert codes[0] == -9  # still there, killed by the test
    assert codes[1] == 1
    assert reports == {0: [2], 1: [2]}


def test_a_slow_rank_is_late_and_right():
    codes, reports = two_ranks("slow,rank=1,after=1,seconds=0.25")
    assert codes == [0, 0]
    assert reports == {0: [2, 4, 8, []], 1: [2, 4, 8, [0.25, 0.25]]}
