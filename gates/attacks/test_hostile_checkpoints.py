# SPDX-License-Identifier: Apache-2.0
"""Hostile checkpoint files: refused from the headers, by file and tensor, before a byte of data is read."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCE = Path(__file__).parents[2] / "overlay/vllm-gaudi/vllm_gaudi/loader/headers.py"
_spec = importlib.util.spec_from_file_location("checkpoint_headers", SOURCE)
headers = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = headers
_spec.loader.exec_module(headers)
CheckpointError = headers.CheckpointError

GOOD = {
    "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [12, 16]},
    "none": {"dtype": "F32", "shape": [0, 5], "data_offsets": [16, 16]},
}


def shard(path: Path, header: object = GOOD, data: bytes = bytes(16), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def index(folder: Path, **where: str) -> None:
    (folder / headers.INDEX).write_text(json.dumps({"weight_map": where}))


def test_a_good_file_is_read(tmp_path):
    file = shard(tmp_path / "m.safetensors", {**GOOD, "__metadata__": {"format": "pt"}})
    found = headers.read_checkpoint(tmp_path)
    start = file.stat().st_size - 16
    assert {name: (t.dtype, t.shape, t.offset - start, t.nbytes) for name, t in found.items()} == {
        "a": ("BF16", (2, 3), 0, 12),
        "b": ("F8_E4M3", (4,), 12, 4),
        "none": ("F32", (0, 5), 16, 0),
    }


def change(name: str, **fields: object) -> dict:
    return {**GOOD, name: {**GOOD[name], **fields}}


HEADERS = {
    "metadata as a list": ({**GOOD, "__metadata__": ["pt"]}, "__metadata__ in the header"),
    "metadata of numbers": ({**GOOD, "__metadata__": {"a": 1}}, "__metadata__ in the header"),
    "overlap": (change("b", data_offsets=[11, 15]), "tensor b at offset .* overlaps"),
    "gap": (change("a", shape=[2, 2], data_offsets=[0, 8]), "tensor b at offset .* gap"),
    "beyond the file": (change("b", shape=[40], data_offsets=[12, 52]), "tensor b at offset .* truncated"),
    "size lies": (change("a", shape=[2, 4]), "tensor a: .* is 16 bytes"),
    "unknown dtype": (change("a", dtype="F4"), "tensor a: dtype 'F4'"),
    "negative size": (change("a", shape=[-2, -3]), "tensor a: shape"),
    "huge size": (change("a", shape=[1 << 70]), "tensor a: shape"),
    "float size": (change("a", shape=[2.0, 3]), "tensor a: shape"),
    "bool size": (change("a", shape=[True, 6]), "tensor a: shape"),
    "backwards": (change("a", data_offsets=[12, 0]), "tensor a: data_offsets"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, "tensor a: header entry lacks"),
    "no object": ([1, 2], "not an object"),
    "repeated key": (b'{"a": 1, "a": 2}', "'a' occurs twice"),
    "nesting": (b"[" * 100_000, "not valid JSON"),
    "no utf-8": (b'{"\xff": 1}', "not valid JSON"),
    "number": (b'{"a": NaN}', "number NaN"),
    "data left over": ({"a": GOOD["a"]}, "data end at offset"),
}


@pytest.mark.parametrize("lie", HEADERS)
def test_a_header_that_lies_is_refused_by_file_and_tensor(tmp_path, lie):
    header, message = HEADERS[lie]
    file = shard(tmp_path / "m.safetensors", header)
    with pytest.raises(CheckpointError, match=message) as refused:
        headers.read_header(file)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("length", [0, 1 << 63, (1 << 64) - 1, 100_000_001, 10_000])
def test_a_length_that_lies_is_refused_without_reading_that_much(tmp_path, length):
    with pytest.raises(CheckpointError, match="header"):
        headers.read_header(shard(tmp_path / "m.safetensors", length=length))


def test_every_truncation_is_refused(tmp_path):
    whole = shard(tmp_path / "m.safetensors").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "m.safetensors").write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            headers.read_header(tmp_path / "m.safetensors")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    os.mkdir(tmp_path / "d.safetensors")
    with pytest.raises(CheckpointError, match=r"d\.safetensors"):
        headers.read_header(tmp_path / "d.safetensors")
    os.mkfifo(tmp_path / "p.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        headers.read_header(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    "name", ["../m.safetensors", "/etc/hostname", "sub/m.safetensors", "..", "", "m\0.safetensors"]
)
def test_an_index_that_leaves_the_folder_is_refused(tmp_path, name):
    shard(tmp_path / "m.safetensors")
    index(tmp_path, a="m.safetensors", b=name, none="m.safetensors")
    with pytest.raises(CheckpointError, match="tensor b points to"):
        headers.read_checkpoint(tmp_path)


def test_a_folder_that_disagrees_with_its_index_is_refused(tmp_path):
    shard(tmp_path / "m.safetensors")
    index(tmp_path, a="m.safetensors", b="gone.safetensors")
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: missing.*tensor b"):
        headers.read_checkpoint(tmp_path)
    index(tmp_path, a="m.safetensors", b="m.safetensors")
    with pytest.raises(CheckpointError, match="tensor none is in this shard"):
        headers.read_checkpoint(tmp_path)
    index(tmp_path, **dict.fromkeys([*GOOD, "more"], "m.safetensors"))
    with pytest.raises(CheckpointError, match="promises tensor more"):
        headers.read_checkpoint(tmp_path)
    index(tmp_path, **dict.fromkeys(GOOD, "m.safetensors"))
    assert set(headers.read_checkpoint(tmp_path)) == set(GOOD)
    shard(tmp_path / "extra.safetensors", {}, b"")
    with pytest.raises(CheckpointError, match=r"extra\.safetensors: not in"):
        headers.read_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    shard(tmp_path / "m.safetensors")
    shard(tmp_path / "n.safetensors")
    with pytest.raises(CheckpointError, match=r"n\.safetensors: tensor a is also in .*m\.safetensors"):
        headers.read_checkpoint(tmp_path)


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        headers.read_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_unreadable_index_is_refused(tmp_path, text):
    shard(tmp_path / "m.safetensors")
    (tmp_path / headers.INDEX).write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        headers.read_checkpoint(tmp_path)


_scalars = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=6)
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
_entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*headers.ITEM_SIZES, "F4"]) | _scalars,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | _json,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | _json,
    },
)


@settings(max_examples=300, deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=3), _entries | _json, max_size=4).map(lambda v: json.dumps(v).encode())
    | st.binary(max_size=60),
    data=st.integers(0, 40),
    length=st.none() | st.integers(0, 1 << 20),
)
def test_fuzzed_headers_are_read_right_or_refused(tmp_path_factory, header, data, length):
    file = shard(tmp_path_factory.getbasetemp() / "fuzz.safetensors", header, bytes(data), length)
    found, refused = [], None
    try:
        found = headers.read_header(file)
    except CheckpointError as error:
        refused = str(error)
    if refused is not None:
        assert str(file) in refused
        return
    size, at = file.stat().st_size, 8 + (len(header) if length is None else length)
    for stored in found:
        assert stored.offset == at
        at += stored.nbytes
    assert at == size
