# SPDX-License-Identifier: Apache-2.0
"""What a folder may hold in place of a readable file: each is refused by name and with a next action, none waits."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import save_file

from vllm_gaudi.loader import headers
from vllm_gaudi.loader.headers import INDEX, CheckpointError, read_checkpoint
from vllm_gaudi.loader.reader import Files

SHARD = "model-00001-of-00001.safetensors"
ACTION = r"; (check|download|do not use)"


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / SHARD)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": SHARD}}))

    def hung(*_):
        raise AssertionError("waited for a writer")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(20)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


PUT = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "dangling link": lambda path: os.symlink("nowhere", path),
    "looping link": lambda path: os.symlink(path.name, path),
    "link to a device": lambda path: os.symlink("/dev/null", path),
}


@pytest.mark.parametrize("what", PUT)
@pytest.mark.parametrize("name", [INDEX, SHARD])
def test_what_is_no_file_is_refused_by_name(folder, name, what):
    assert read_checkpoint(folder)
    (folder / name).unlink()
    PUT[what](folder / name)
    with pytest.raises(CheckpointError, match=name + ".*" + ACTION):
        read_checkpoint(folder)


def test_a_name_too_long_for_the_file_system_is_refused(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(CheckpointError, match=f"tensor a there.*{ACTION}") as refused:
        read_checkpoint(folder)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("name", [INDEX, SHARD, ""])
def test_what_may_not_be_read_is_refused_by_name(folder, name, monkeypatch):
    denied, calls = str(folder / name) if name else str(folder), {"open": os.open, "listdir": os.listdir}

    def deny(call):
        def wrapped(path, *rest, **more):
            if str(path) == denied:
                raise PermissionError(13, "Permission denied", str(path))
            return calls[call](path, *rest, **more)

        return wrapped

    # root may read everything, and tests may run as root
    for call in calls:
        monkeypatch.setattr(headers.os, call, deny(call))
    with pytest.raises(CheckpointError, match=f"{denied}: Permission denied.*{ACTION}"):
        read_checkpoint(folder)


def test_a_file_that_becomes_a_pipe_after_the_plan_is_not_waited_for(folder):
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    with pytest.raises(CheckpointError, match="not a regular file"):
        Files().read(str(folder / SHARD), [memoryview(bytearray(4))], 0)


def test_hidden_files_are_no_shards(folder):
    (folder / f"._{SHARD}").write_bytes(b"\0\5\x16\7 resource fork")
    assert list(read_checkpoint(folder)) == ["a"]


@pytest.mark.parametrize("metadata", [[], "pt", None, {"format": 1}])
def test_metadata_is_an_object_of_strings(folder, metadata):
    text = json.dumps({"__metadata__": metadata, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / SHARD).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(CheckpointError, match=f"{SHARD}: __metadata__ .*{ACTION}"):
        read_checkpoint(folder)
