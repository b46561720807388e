# SPDX-License-Identifier: Apache-2.0
"""Device names, residency, copies, memory: what a torch program sees of the emulated card."""

import copy
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from gates.hpusim import memory, tracker
from gates.hpusim import settings as settings_module
from gates.hpusim.residency import is_device
from gates.hpusim.settings import NAMES, PREFIX, Settings, refuse_unknown, settings


@pytest.mark.parametrize("device", ["hpu", "hpu:0", torch.device("hpu"), torch.device("hpu", 1), 0])
def test_every_way_to_name_the_card(device):
    assert torch.empty(2, device=device).device == torch.device("hpu", 0)


def test_unknown_card_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"hpu:99 does not exist: the emulated machine has"):
        torch.empty(2, device="hpu:99")


def test_factories_place_on_the_card():
    made = {
        "empty": torch.empty(2, device="hpu"),
        "zeros": torch.zeros(2, device="hpu"),
        "full": torch.full((2,), 3, device="hpu"),
        "arange": torch.arange(3, device="hpu"),
        "tensor": torch.tensor([1, 2], device="hpu"),
        "as_tensor": torch.as_tensor([1, 2], device="hpu"),
        "rand": torch.rand(2, device="hpu", generator=torch.Generator(device="hpu").manual_seed(1)),
        "eye": torch.eye(2, device="hpu"),
        "linspace": torch.linspace(0, 1, 3, device="hpu"),
    }
    base = made["zeros"]
    made |= {"zeros_like": torch.zeros_like(base), "new_ones": base.new_ones(3), "new_tensor": base.new_tensor([1])}
    assert [name for name, tensor in made.items() if not is_device(tensor)] == []
    assert not is_device(torch.zeros_like(base, device="cpu"))


def test_device_contexts():
    with torch.device("hpu"):
        inside = torch.nn.Linear(2, 2)
        # The context sees methods as well; a move must end where it is told all the same.
        moves = [inside.weight.to(inside.weight.device), inside.weight.to("hpu", torch.bfloat16), inside.weight.hpu()]
        moves.append(torch.ones(2, device="cpu").to("hpu"))
        back = [inside.weight.cpu(), torch.zeros_like(inside.weight, device="cpu").copy_(inside.weight)]
    with torch.device("cpu"):
        moves.append(inside.weight.to("hpu"))
    assert {tensor.device.type for tensor in (inside.weight, *moves)} == {"hpu"}
    assert {tensor.device.type for tensor in back} == {"cpu"}
    with torch.device("meta"):
        assert torch.empty(2).is_meta
    assert torch.empty(2).device.type == "cpu"


def test_results_follow_their_inputs():
    on_card, on_host = torch.ones(3, device="hpu"), torch.ones(3)
    assert is_device(on_card + 1)
    assert is_device(on_card[1:].view(-1))
    assert is_device(torch.cat([on_card, on_card]))
    assert is_device(on_card.sort().values)
    assert not is_device(on_host + 1)
    on_host.copy_(on_card)
    assert not is_device(on_host)


def test_a_copy_never_shares_memory():
    host = torch.zeros(4)
    card = host.to("hpu")
    host += 1
    assert card.tolist() == [0, 0, 0, 0]
    back = card.cpu()
    card += 5
    assert back.tolist() == [0, 0, 0, 0]
    assert card.to("hpu") is card
    assert host.cpu() is host


def test_to_keeps_every_calling_form():
    host = torch.ones(2)
    card = torch.ones(2, device="hpu")
    assert host.to(card).device.type == "hpu"
    assert card.to(host).device.type == "cpu"
    assert card.to(torch.float64).device.type == "hpu"
    moved = host.to("hpu", torch.int32, non_blocking=True)
    assert (moved.device.type, moved.dtype) == ("hpu", torch.int32)
    assert card.to(device="cpu", dtype=torch.float16).dtype == torch.float16
    assert host.hpu().is_hpu


def test_parameters_and_subclasses_move():
    class Weight(torch.nn.Parameter):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    module = torch.nn.Module()
    module.weight = Weight(torch.ones(2, 2), requires_grad=False)
    for _ in range(2):  # the second move finds it there already
        module.to("hpu")
        assert module.weight.device.type == "hpu"
    assert copy.deepcopy(module).weight.device.type == "hpu"


def test_numpy_of_a_card_tensor_is_refused():
    card = torch.ones(2, device="hpu")
    with pytest.raises(TypeError, match="copy it to host memory first"):
        card.numpy()
    with pytest.raises(TypeError, match="copy it to host memory first"):
        np.asarray(card)
    for share in (torch.Tensor.__dlpack__, torch.utils.dlpack.to_dlpack, np.from_dlpack, torch.from_dlpack):
        with pytest.raises((TypeError, ValueError)):
            share(card)
        share(torch.ones(2))
    assert card.cpu().numpy().tolist() == [1, 1]


def test_loading_onto_the_card_is_refused_by_name(tmp_path):
    torch.save(torch.ones(1), tmp_path / "x")
    with pytest.raises(NotImplementedError, match=r"map_location='hpu'.*not emulated"):
        torch.load(tmp_path / "x", map_location="hpu")


def test_pinning_marks_host_memory():
    pinned = torch.empty(2, pin_memory=True)
    assert pinned.is_pinned()
    assert not torch.empty(2).is_pinned()
    assert torch.empty(2).pin_memory().is_pinned()


def test_memory_is_counted_and_returned():
    gc.collect()
    before = torch.hpu.memory_allocated()
    held = torch.empty(1 << 20, dtype=torch.uint8, device="hpu")
    view = held[10:]
    assert torch.hpu.memory_allocated() - before == 1 << 20
    del held
    assert torch.hpu.memory_allocated() - before == 1 << 20, "a view keeps the storage"
    del view
    assert torch.hpu.memory_allocated() == before
    free, total = torch.hpu.mem_get_info()
    assert (total, total - free) == (settings().memory_bytes, before)
    assert torch.accelerator.get_memory_info()[1] == total


def test_out_of_memory_says_what_to_change():
    free, _ = torch.hpu.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError, match=r"lower gpu_memory_utilization or raise HPUSIM_MEM_GIB"):
        torch.empty(free + 1, dtype=torch.uint8, device="hpu")
    assert torch.hpu.mem_get_info()[0] == free, "the failed request is not booked"


def test_high_water_mark_and_reset():
    torch.hpu.reset_peak_memory_stats()
    start = memory.max_memory_allocated()
    torch.empty(4096, dtype=torch.uint8, device="hpu")
    assert memory.max_memory_allocated() - start == 4096
    torch.hpu.reset_peak_memory_stats()
    assert memory.max_memory_allocated() == memory.memory_allocated()


def test_paused_work_leaves_no_trace():
    card = torch.ones(2, device="hpu")
    with tracker.paused():
        assert not is_device(card + 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HPUSIM_HW", "gaudi9", "expected one of gaudi2, gaudi3"),
        ("HPUSIM_MEM_GIB", "much", "expected a number of at least"),
        ("HPUSIM_MEM_GIB", "nan", "expected a number of at least"),
        ("HPUSIM_MEM_GIB", "inf", "expected a number of at least"),
        ("HPUSIM_MEM_GIB", "1e300", "expected a number of at least 0.01 and at most 1048576"),
        ("HPUSIM_DEVICES", "0", "expected a whole number of at least 1"),
        ("HPUSIM_DEVICES", "2.5", "expected a whole number of at least 1"),
        ("HPUSIM_METERS", "/no/such/folder/meters.json", "no file can be written there"),
        ("HPUSIM_MIX", "maybe", "expected one of count, raise"),
    ],
)
def test_wrong_settings_name_the_variable(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    settings.cache_clear()
    try:
        with pytest.raises(ValueError, match=f"{name}=.*{message}"):
            settings()
    finally:
        monkeypatch.undo()
        settings.cache_clear()
        assert isinstance(settings(), Settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("HPUSIM_MEMGIB", "HPUSIM_MEMGIB is not a setting of the emulated Gaudi: did you mean HPUSIM_MEM_GIB"),
        ("HPUSIM_COLOUR_OF_THE_CASE", "there are HPUSIM_HW, "),
        ("HPUSIM_FAULTS_RUN_AHEAD", "HPUSIM_FAULTS_RUN_AHEAD is not a setting"),
    ],
)
def test_unknown_settings_are_refused_by_name(name, message):
    with pytest.raises(ValueError, match=message):
        refuse_unknown([name, "PATH"])


def test_known_settings_and_other_names_are_not_refused():
    refuse_unknown(
        [f"{PREFIX}{name}" for name in NAMES] + ["HPUSIM_FAULT_RUN_AHEAD", "PT_HPU_LAZY_MODE", "MY_HPUSIM_X"]
    )
    assert all(f"| {PREFIX}{name} |" in settings_module.__doc__ for name in NAMES)


@pytest.mark.parametrize(
    ("name", "value"), [("HPUSIM_HARDWARE", "gaudi3"), ("HPUSIM_OFF", "true"), ("HPUSIM_FSDPA_WINDOW", "maybe")]
)
def test_a_process_with_a_wrong_setting_does_not_start(name, value):
    environment = {**os.environ, name: value}
    done = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert name in done.stderr


def test_mixing_host_and_card_can_be_made_an_error(monkeypatch):
    card, host = torch.ones(3, device="hpu"), torch.ones(3)
    card + host  # counted only, by default
    monkeypatch.setenv("HPUSIM_MIX", "raise")
    settings.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"aten::add\.Tensor: expected all tensors on hpu:0"):
            card + host
        assert (card + torch.tensor(2.0)).tolist() == [3, 3, 3], "a scalar on the host is allowed"
        assert card[[0, 1]].tolist() == [1, 1], "and so are indices"
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_loading_takes_its_place_either_way(tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", "cpu").tolist() == [1, 1]
    assert torch.load(tmp_path / "x.pt", lambda storage, place: storage).tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match="map_location='hpu'"):
        torch.load(tmp_path / "x.pt", {"cpu": "hpu"})


def test_a_load_that_failed_fails_again():
    script = """if True:
        import os
        for value, name in (("gaudi9", "HPUSIM_HW"), ("gaudi9", "HPUSIM_HW"), ("gaudi3", "")):
            os.environ["HPUSIM_HW"] = value
            try:
                import habana_frameworks.torch
            except ValueError as error:
                assert name and name in str(error), error
            else:
                import torch
                assert not name and torch.hpu.get_device_name() == "GAUDI3"
    """
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)


def test_a_load_that_failed_half_way_says_so(monkeypatch):
    from gates.hpusim import load

    def broken():
        raise OSError("no compiler")

    monkeypatch.setattr(load, "_loaded", False)
    monkeypatch.setattr(load, "_failure", None)
    monkeypatch.setattr(load, "_install", broken)
    with pytest.raises(OSError, match="no compiler"):
        load.load()
    with pytest.raises(RuntimeError, match="failed while it was switched on") as refusal:
        load.load()
    assert isinstance(refusal.value.__cause__, OSError)


def test_autocast_for_the_card_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"torch.autocast\('hpu'\) is not emulated"):
        torch.autocast("hpu", dtype=torch.bfloat16)
    with torch.autocast("hpu", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
