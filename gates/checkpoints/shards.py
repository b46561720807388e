# SPDX-License-Identifier: Apache-2.0
"""Write tensors as safetensors shards with an index."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


def write_shards(folder: Path, values: dict[str, torch.Tensor], shards: int) -> None:
    """Write `values` in their order into `shards` files of about as many tensors each, and the index."""
    names, where = list(values), {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: values[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    size = sum(value.nbytes for value in values.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=1))
