# SPDX-License-Identifier: Apache-2.0
"""Copies of a checkpoint with one thing changed."""

import json
import shutil

from safetensors.torch import load_file, save_file


def edit(source, target, change):
    """A copy of a checkpoint with `change(folder, tensors of the last shard)` applied."""
    shutil.copytree(source, target)
    shard = sorted(target.glob("*.safetensors"))[-1]
    tensors = load_file(shard)
    change(target, tensors)
    save_file(tensors, shard, metadata={"format": "pt"})
    index_path = target / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    where = {name: file for name, file in index["weight_map"].items() if file != shard.name}
    index["weight_map"] = {**where, **dict.fromkeys(tensors, shard.name)}
    index_path.write_text(json.dumps(index))
    return target


def drop(name):
    return lambda folder, tensors: tensors.pop(name)


def put(name, make):
    return lambda folder, tensors: tensors.__setitem__(name, make(tensors.get(name)))


def file_edit(name, **fields):
    def change(folder, tensors):
        path = folder / name
        path.write_text(
            json.dumps({k: v for k, v in {**json.loads(path.read_text()), **fields}.items() if v != "DROP"})
        )

    return change
