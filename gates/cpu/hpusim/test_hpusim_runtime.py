# SPDX-License-Identifier: Apache-2.0
"""Identity of the card, streams and events, graphs, metrics, bridge settings, collectives, the installer."""

import collections
import importlib.metadata
import subprocess
import sys
import textwrap

import habana_frameworks.torch as htorch
import pytest
import torch
from habana_frameworks.torch.hpu.metrics import metric_localcontext
from habana_frameworks.torch.internal import bridge_config
from habana_frameworks.torch.utils import experimental

from gates.hpusim import install, testing
from gates.hpusim.graphs import input_hash


def child(script: str, **env: str) -> str:
    """Output of a Python process in this environment."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=testing.environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_metadata_the_plugin_reads():
    assert importlib.metadata.version("habana-torch-plugin") == "1.24.1.500"
    assert importlib.metadata.version("neural_compressor_pt") == "3.7"


@pytest.mark.parametrize(
    ("hardware", "mode", "expected"),
    [("gaudi2", "1", "synDeviceGaudi2 GAUDI2 240.0 True"), ("gaudi3", "0", "synDeviceGaudi3 GAUDI3 448.0 False")],
)
def test_personality_and_mode_follow_the_environment(hardware, mode, expected):
    script = """
        import torch
        import habana_frameworks.torch as h
        x = torch.tensor([1e9], dtype=torch.bfloat16, device="hpu")
        q = torch.ops.hpu.cast_to_fp8_v2(x, None, False, False, torch.float8_e4m3fn)[0]
        kind = h.utils.experimental._get_device_type().name
        print(kind, torch.hpu.get_device_name(), float(q.float()), h.utils.internal.is_lazy())
    """
    assert child(script, HPUSIM_HW=hardware, PT_HPU_LAZY_MODE=mode) == expected


def test_a_process_can_opt_out():
    script = "import torch; print(hasattr(torch, 'hpu'), torch.ones(1).device)"
    assert child(script, HPUSIM_OFF="1") == "False cpu"


def test_what_is_missing_is_named():
    with pytest.raises(AttributeError, match=r"torch\.hpu\.no_such_thing is not emulated"):
        _ = torch.hpu.no_such_thing
    with pytest.raises(NotImplementedError, match="HPUGraph"):
        torch.hpu.HPUGraph()
    with (
        pytest.raises(NotImplementedError, match="memory_defragmentation"),
        metric_localcontext("memory_defragmentation"),
    ):
        pass
    with (
        pytest.raises(NotImplementedError, match="PT_HPU_UNHEARD_OF"),
        bridge_config.env_setting("PT_HPU_UNHEARD_OF", 1),
    ):
        pass
    for missing in (torch.accelerator.get_device_capability, torch.accelerator.Graph):
        with pytest.raises(NotImplementedError, match=rf"torch\.accelerator\.{missing.__name__} is not emulated"):
            missing()
    assert torch.hpu.memory_stats()["InUse"] == torch.hpu.memory_allocated()
    assert torch.accelerator.memory_stats().get("allocated_bytes.all.peak", 0) == 0
    with pytest.raises(NotImplementedError, match=r"memory_stats\(\)\['NumFrees'\] is not emulated; there are Limit"):
        _ = torch.hpu.memory_stats()["NumFrees"]


def test_compile_only_mode_is_scoped(monkeypatch):
    assert not bridge_config.get_pt_compile_only_mode()
    monkeypatch.setenv("PT_COMPILE_ONLY_MODE", "1")
    assert bridge_config.get_pt_compile_only_mode()
    with bridge_config.env_setting("PT_COMPILE_ONLY_MODE", False):
        assert not bridge_config.get_pt_compile_only_mode(), "what the program sets counts before its environment"
    monkeypatch.delenv("PT_COMPILE_ONLY_MODE")
    with bridge_config.env_setting("PT_COMPILE_ONLY_MODE", True):
        assert bridge_config.get_pt_compile_only_mode()
    assert not bridge_config.get_pt_compile_only_mode()


def test_accelerator_api():
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.hpu.device_count() == 8
    assert torch.accelerator.current_accelerator() == torch.device("hpu")
    with torch.accelerator.device_index(0):
        torch.accelerator.synchronize()
    assert experimental._data_ptr(torch.ones(1, device="hpu")) > 0


def test_streams_nest_and_events_time():
    side = torch.hpu.Stream()
    default = torch.hpu.current_stream()
    with torch.hpu.stream(side):
        assert torch.hpu.current_stream() == side
    assert torch.hpu.current_stream() == default == torch.hpu.default_stream()
    first, second = torch.hpu.Event(enable_timing=True), torch.hpu.Event(enable_timing=True)
    first.record()
    second.record(side)
    side.wait_event(first)
    second.synchronize()
    assert first.elapsed_time(second) >= 0
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        first.elapsed_time(torch.hpu.Event())
    with pytest.raises(RuntimeError, match="recorded first"):
        first.elapsed_time(torch.hpu.Event(enable_timing=True))


class Doubler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.runs = 0

    def forward(self, x, scale=1):
        self.runs += 1
        return x * 2 * scale


def test_graphs_capture_once_and_replay_into_the_same_output():
    module = htorch.hpu.wrap_in_hpu_graph(Doubler(), disable_tensor_cache=True)
    with metric_localcontext("graph_compilation") as metric:
        first = module(torch.ones(2, device="hpu"))
        second = module(torch.full((2,), 5.0, device="hpu"))
        assert metric.stats()[0] == ("TotalNumber", 1)
        module(torch.ones(3, device="hpu"))
        module(torch.ones(2, device="hpu"), scale=3)  # a Python scalar is part of the key
    assert metric.stats()[0][1] == 3
    assert [name for name, _ in metric.stats()[3][1]] == ["Doubler 2", "Doubler 3", "Doubler 2"]
    assert first is second
    assert first.tolist() == [10, 10]


def test_replayed_output_is_overwritten():
    module = htorch.hpu.wrap_in_hpu_graph(Doubler())
    kept = module(torch.ones(2, device="hpu"))
    module(torch.full((2,), 5.0, device="hpu"))
    assert kept.tolist() == [10, 10], "on the device an output lives in the graph and the next replay overwrites it"


def test_warmup_does_not_replay_and_bypass_does_not_capture():
    module = htorch.hpu.wrap_in_hpu_graph(Doubler())
    x = torch.ones(2, device="hpu")
    module(x, bypass_hpu_graphs=True)
    assert module.hpu_graph_cache.outputs == {}
    module(x)
    runs = module.runs
    module(x, warmup_mode=True)
    assert module.runs == runs
    module.clear_cache()
    module(x)
    assert len(module.hpu_graph_cache.outputs) == 1


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: x.cpu(), bool])
def test_a_captured_graph_cannot_be_read(read):
    class Reader(torch.nn.Module):
        def forward(self, x):
            return x * 1, read(x)

    graph = htorch.hpu.wrap_in_hpu_graph(Reader())
    x = torch.ones(1, device="hpu")
    with pytest.raises(RuntimeError, match="the host cannot read a device value inside a captured HPU graph"):
        graph(x)
    assert graph(x, bypass_hpu_graphs=True)[0].tolist() == [1], "and outside it can"


def test_only_modules_are_wrapped():
    with pytest.raises(TypeError, match=r"needs a torch\.nn\.Module, got function"):
        htorch.hpu.wrap_in_hpu_graph(lambda x: x)


def test_input_hash_tells_what_the_bridge_tells():
    pair = collections.namedtuple("pair", "a b")
    one, two = torch.tensor(1), torch.tensor(2)
    assert input_hash(one) == input_hash(two), "tensors by metadata"
    assert input_hash(1) != input_hash(2), "scalars by value"
    assert input_hash(pair(one, 3)) == input_hash(pair(two, 3))
    assert input_hash({"x": torch.ones(2)}) != input_hash({"x": torch.ones(3)})
    assert input_hash(torch.ones(2, dtype=torch.int32)) != input_hash(torch.ones(2))


def test_dynamo_backend_runs_the_graph_and_counts_it():
    script = """
        import torch
        from habana_frameworks.torch.hpu.metrics import metric_localcontext
        compiled = torch.compile(lambda x: torch.full_like(x, 2) * torch.relu(x), backend="hpu_backend")
        with metric_localcontext("graph_compilation") as metric:
            out = compiled(torch.tensor([-1.0, 2.0], device="hpu"))
            compiled(torch.tensor([-3.0, 4.0], device="hpu"))
        print(out.tolist(), out.device.type, metric.stats()[0][1])
    """
    assert child(script, PT_HPU_LAZY_MODE="0") == "[0.0, 4.0] hpu 1"


def test_hccl_collectives_over_two_processes(tmp_path):
    script = f"""
        import sys, torch, torch.distributed as dist
        import torch.multiprocessing as mp

        def work(rank):
            dist.init_process_group("hccl", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
            x = torch.full((2,), float(rank + 1), device="hpu")
            dist.all_reduce(x)
            parts = torch.empty(4, device="hpu")
            dist.all_gather_into_tensor(parts, torch.full((2,), float(rank), device="hpu"))
            half = torch.empty(1, device="hpu")
            dist.reduce_scatter_tensor(half, torch.tensor([1.0, 2.0], device="hpu"))
            if rank == 0:
                print(x.tolist(), x.device.type, parts.tolist(), half.tolist(), flush=True)
            dist.destroy_process_group()

        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
    """
    path = tmp_path / "two.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)], env=testing.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[3.0, 3.0] hpu [0.0, 0.0, 1.0, 1.0] [2.0]", done.stderr[-3000:]


def test_installer_is_idempotent_and_reversible(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(install, "site_packages", lambda venv: packages)
    monkeypatch.setattr(install, "check", lambda venv: [])
    target = install.install(tmp_path)
    written = target.stat().st_mtime_ns
    assert install.install(tmp_path) == target
    assert target.stat().st_mtime_ns == written
    assert str(install.ROOT) in target.read_text().splitlines()
    install.uninstall(tmp_path)
    install.uninstall(tmp_path)
    assert list(packages.iterdir()) == []


def test_installer_refuses_what_cannot_serve(tmp_path, capsys):
    assert install.main([str(tmp_path)]) == 1
    assert "is not a virtual environment" in capsys.readouterr().err


def test_installer_names_the_package_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(install, "REQUIRED", (("torch", "9.9", "why"), ("no-such-thing", None, "because")))
    monkeypatch.setattr(install, "python_of", lambda venv: sys.executable)
    problems = install.check(sys.prefix)
    assert "torch is" in problems[0]
    assert "pip install torch==9.9" in problems[0]
    assert problems[1].startswith("no-such-thing is not installed")
