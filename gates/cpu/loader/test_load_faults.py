# SPDX-License-Identifier: Apache-2.0
"""Flawed checkpoints leave every parameter untouched; faults while reading end the load with tensor and offset."""

import errno
import json
import os
import random
import re
import shutil
import threading
import time

import pytest
import torch
from rank_model import load
from safetensors.torch import load_file, save_file

from vllm_gaudi.loader import reader
from vllm_gaudi.loader.headers import INDEX, CheckpointError
from vllm_gaudi.loader.model_loader import FrontierModelLoader
from vllm_gaudi.loader.state_hash import state_digest

LAST = "model.layers.4."
LOCATED = r"model-0\d+-of-0\d+\.safetensors: tensor (?=\S+ at offset \d+)"


@pytest.fixture
def copy(checkpoint, tmp_path):
    """A private copy of the FP8 checkpoint."""
    return shutil.copytree(checkpoint(fp8=True), tmp_path / "copy")


def edit(folder, change):
    """`change(tensors)` of the last shard, index kept in step."""
    shard = sorted(folder.glob("*.safetensors"))[-1]
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard, metadata={"format": "pt"})
    index = json.loads((folder / INDEX).read_text())
    kept = {name: file for name, file in index["weight_map"].items() if file != shard.name}
    index["weight_map"] = {**kept, **dict.fromkeys(tensors, shard.name)}
    (folder / INDEX).write_text(json.dumps(index))


def replace(name, make):
    return lambda folder: edit(folder, lambda tensors: tensors.__setitem__(name, make(tensors.get(name))))


def drop(name):
    return lambda folder: edit(folder, lambda tensors: tensors.pop(name))


def truncate(folder):
    file = sorted(folder.glob("*.safetensors"))[0]
    os.truncate(file, file.stat().st_size - 1)


def twice(folder):
    (folder / INDEX).unlink()
    save_file({"model.norm.weight": torch.zeros(40)}, folder / "zz.safetensors")


EXPERT = f"{LAST}mlp.experts.3.up_proj."
FLAWS = {
    "truncated": (truncate, r"model-00001.*: tensor .* at offset \d+ .*truncated"),
    "duplicate": (twice, r"zz.safetensors: tensor model.norm.weight is also in"),
    "extra shard": (lambda f: save_file({"a": torch.zeros(1)}, f / "zz.safetensors"), r"zz.safetensors: not in"),
    "missing": (drop(EXPERT + "weight"), r"experts\.3\.up_proj\.weight"),
    "missing scale": (drop(EXPERT + "weight_scale"), r"experts\.3\.up_proj\.weight_scale"),
    "unexpected": (replace("model.rotary.cos", lambda _: torch.zeros(3)), r"model\.rotary\.cos: no such tensor"),
    "scale shape": (replace(EXPERT + "weight_scale", lambda t: t[:, 0]), r"up_proj\.weight_scale: shape \(24,\)"),
    "wrong dtype": (replace(EXPERT + "weight", lambda t: t.to(torch.bfloat16)), r"up_proj\.weight: stored as bfloat16"),
    "transposed": (replace(EXPERT + "weight", lambda t: t.t().contiguous()), r"up_proj\.weight: shape \(40, 24\)"),
}


MUSE_LAST = "model.language_model.layers.6.mlp.experts.3."
MUSE_FLAWS = {
    "missing packed weight": (drop(MUSE_LAST + "up_proj.weight"), r"experts\.3\.up_proj\.weight"),
    "missing E8M0 scale": (drop(MUSE_LAST + "up_proj.weight_scale"), r"experts\.3\.up_proj\.weight_scale"),
    "scales as E8M0": (
        replace(MUSE_LAST + "up_proj.weight_scale", lambda t: t.view(torch.float8_e8m0fnu)),
        rf"safetensors: tensor {MUSE_LAST}up_proj.weight_scale at offset \d+: .*E8M0 scales as uint8 there",
    ),
    "scale of a group too few": (
        replace(MUSE_LAST + "up_proj.weight_scale", lambda t: t[:, 1:].contiguous()),
        r"up_proj\.weight_scale: shape \(256, 2\)",
    ),
    "scales by row": (
        replace(MUSE_LAST + "down_proj.weight_scale", lambda t: t.t().contiguous()),
        r"down_proj\.weight_scale: shape \(8, 96\)",
    ),
    "unpacked": (
        replace(MUSE_LAST + "up_proj.weight", lambda t: t.repeat(1, 2)),
        r"up_proj\.weight: shape \(256, 96\)",
    ),
    "float scales": (
        replace(MUSE_LAST + "up_proj.weight_scale", lambda t: t.float()),
        r"up_proj\.weight_scale: stored as float32",
    ),
    "plain where packed": (
        replace(MUSE_LAST + "up_proj.weight", lambda t: t.to(torch.bfloat16)),
        "quantization_config says MXFP4",
    ),
    "quantised attention": (
        replace(
            "model.language_model.layers.6.self_attn.q_proj.weight_scale",
            lambda _: torch.zeros(128, 4, dtype=torch.uint8),
        ),
        "only routed experts may be",
    ),
    "unknown": (replace("model.language_model.layers.6.extra", lambda _: torch.zeros(1)), "no such tensor in Muse"),
}


def load_into(model, folder, **extra):
    config = model.vllm_config
    config.model_config.model = str(folder)
    config.load_config.model_loader_extra_config = extra
    loader = FrontierModelLoader(config.load_config)
    loader.load_weights(model, config.model_config)
    return loader.totals


@pytest.mark.parametrize("flaw", [*FLAWS, *MUSE_FLAWS])
def test_a_flawed_checkpoint_changes_nothing(checkpoint, copy, empty_model, flaw, monkeypatch, tmp_path):
    change, message = {**FLAWS, **MUSE_FLAWS}[flaw]
    if flaw in MUSE_FLAWS:
        copy = shutil.copytree(checkpoint(mxfp4=True), tmp_path / "muse")
    model = empty_model(copy)
    before = state_digest(model)
    change(copy)
    monkeypatch.setattr(reader.Files, "read", lambda *_: pytest.fail("a byte of data was read"))
    with pytest.raises(ValueError, match=message) as refused:
        load_into(model, copy)
    assert state_digest(model) == before
    if not flaw.startswith(("missing", "duplicate", "extra")):  # those are of no one tensor, or of two
        assert re.search(LOCATED + (MUSE_LAST[:21] if flaw in MUSE_FLAWS else "model."), str(refused.value))


def test_a_model_that_does_not_state_its_tensors_is_refused(copy, empty_model, monkeypatch):
    """Its own code may transpose or fold values as it loads: nobody else can know."""
    model = empty_model(copy)
    before = state_digest(model)
    monkeypatch.delattr(type(model), "checked_tensors")
    with pytest.raises(NotImplementedError, match=r"BeamForCausalLM does not state which .* --load-format auto"):
        load_into(model, copy)
    assert state_digest(model) == before


def no_reader_left() -> bool:
    return not [thread.name for thread in threading.enumerate() if thread.name.startswith("load-")]


def faulty_read(monkeypatch, fault, at: int = 3):
    """`fault(file, offset)` instead of the `at`-th read."""
    real, count = reader.Files.read, iter(range(1 << 30))

    def read(self, file, buffers, offset):
        if next(count) == at:
            fault(file, offset)
        real(self, file, buffers, offset)

    monkeypatch.setattr(reader.Files, "read", read)


def test_a_file_that_shrinks_while_it_is_read_is_named_with_the_offset(copy, empty_model, monkeypatch):
    model = empty_model(copy)
    faulty_read(monkeypatch, lambda file, offset: os.truncate(file, offset))
    with pytest.raises(CheckpointError, match=r"safetensors: tensor model\..* at offset \d+: the file ends here"):
        load_into(model, copy)
    assert no_reader_left()


def test_an_error_of_the_storage_is_named_with_the_offset(copy, empty_model, monkeypatch):
    def fail(file, offset):
        raise OSError(errno.EIO, "Input/output error")

    model = empty_model(copy)
    faulty_read(monkeypatch, fail)
    with pytest.raises(CheckpointError, match=r"tensor model\..* at offset \d+: .*Input/output error"):
        load_into(model, copy)
    assert no_reader_left()


def test_whatever_a_reader_thread_raises_ends_the_load(copy, empty_model, monkeypatch):
    def fail(file, offset):
        raise MemoryError("no more")

    model, files = empty_model(copy), len(os.listdir("/proc/self/fd"))
    faulty_read(monkeypatch, fail, at=40)
    with pytest.raises(MemoryError, match="no more"):
        load_into(model, copy, threads=3)
    assert no_reader_left()
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (EXPERT + "weight_scale", float("nan"), "NaN or infinity"),
        (f"{LAST}mlp.experts.3.gate_proj.weight_scale", -1.0, "negative scale"),
        (f"{LAST}mlp.gate.e_score_correction_bias", float("inf"), "NaN or infinity"),
    ],
)
def test_damaged_scales_and_routers_are_refused_as_stock_refuses_them(copy, name, value, message):
    edit(copy, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    for load_format, where in (("auto", ""), ("beam", f"{LOCATED}{name}.*")):
        with pytest.raises(ValueError, match=f"{where}{name}: holds a? ?{message}"):
            load(copy, load_format)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (MUSE_LAST + "down_proj.weight_scale", 255, r"scale byte 255 \(NaN\)"),
        ("model.language_model.layers.6.mlp.gate.weight", float("nan"), "NaN or infinity"),
        ("model.language_model.layers.6.mlp.gate.e_score_correction_bias", float("inf"), "NaN or infinity"),
    ],
)
def test_damaged_values_of_muse_are_refused_by_both_loaders(checkpoint, tmp_path, name, value, message):
    folder = shutil.copytree(checkpoint(mxfp4=True), tmp_path / "muse")
    edit(folder, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    told = name.replace("language_model.", "")
    for load_format, where in (("auto", ""), ("frontier", f"{LOCATED}{name}.*")):
        with pytest.raises(ValueError, match=f"{where}{told}: holds {message}"):
            load(folder, load_format)


def test_a_load_that_fails_is_not_served(copy, monkeypatch):
    faulty_read(monkeypatch, lambda file, offset: os.truncate(file, offset))
    with pytest.raises(CheckpointError):
        load(copy, "beam")


def test_delays_and_shuffled_completion_change_nothing(copy, monkeypatch):
    expected = state_digest(load(copy, "beam", 2, 1))
    real_read, real_jobs, dice = reader.Files.read, reader.join, random.Random(5)

    def slow(self, file, buffers, offset):
        real_read(self, file, buffers, offset)
        time.sleep(dice.choice((0, 0, 0.003)))

    def shuffled(*args):
        jobs = real_jobs(*args)
        dice.shuffle(jobs)
        return jobs

    monkeypatch.setattr(reader.Files, "read", slow)
    monkeypatch.setattr(reader, "join", shuffled)
    assert state_digest(load(copy, "beam", 2, 1, threads=5, host_bytes=1 << 13)) == expected


def test_reads_that_come_in_parts_are_completed(copy, monkeypatch):
    """A network file system may return less than was asked for."""
    expected, real = state_digest(load(copy, "beam")), os.preadv

    def short(handle, buffers, offset):
        return real(handle, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert state_digest(load(copy, "beam")) == expected


def test_every_fp8_byte_survives_as_stock_has_it(copy):
    """NaN, negative zero and subnormals included, in an expert and in attention."""
    every = torch.arange(24 * 40, dtype=torch.int64).to(torch.uint8).view(24, 40)
    edit(copy, lambda t: t.__setitem__(EXPERT + "weight", every.view(torch.float8_e4m3fn)))
    stock, ours = (load(copy, kind) for kind in ("auto", "beam"))
    assert state_digest(stock) == state_digest(ours)
    held = ours.model.layers[4].mlp.experts.routed_experts.w13_weight.data[3, 24:].cpu().view(torch.uint8)
    assert (held[every == 0x7F] == 0x7F).all()
    assert (held[every == 0x7E] == 0x76).all()


def test_a_pass_over_wrong_bytes_would_be_seen(copy, monkeypatch):
    """Control: a piece that lands one row off gives another digest."""
    expected, real = state_digest(load(copy, "beam"))[0], reader.target_of

    def shifted(piece, stack, host):
        place = real(piece, stack, host)
        return place.roll(1, 0) if "experts.3.up_proj.weight" in piece.move.source.name else place

    monkeypatch.setattr(reader, "target_of", shifted)
    assert state_digest(load(copy, "beam"))[0] != expected
