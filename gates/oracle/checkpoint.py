# SPDX-License-Identifier: Apache-2.0
"""Read a safetensors checkpoint directory one tensor at a time.

Nothing is held beyond what a caller keeps: a shard is memory-mapped while it
is read from and at most `MAX_OPEN_SHARDS` shards are open, so a 500 GB
checkpoint can be walked layer by layer in the memory of one layer.
"""

import json
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

INDEX = "model.safetensors.index.json"
MAX_OPEN_SHARDS = 4


class CheckpointError(ValueError):
    """A checkpoint that cannot be scored: what is wrong, in which file, and what to do."""


class Checkpoint:
    """A directory with `config.json` and one or more `*.safetensors` shards.

    Raises:
        CheckpointError: no config or shards, a shard named by the index is
            missing, or a tensor name is held by two shards.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        config = self.path / "config.json"
        if not config.is_file():
            raise CheckpointError(f"{config}: not found; point at the checkpoint directory, not at a shard")
        self.config: dict = json.loads(config.read_text())
        self._open: OrderedDict[str, object] = OrderedDict()
        self._where = self._read_index()

    def _read_index(self) -> dict[str, str]:
        index = self.path / INDEX
        if index.is_file():
            where = json.loads(index.read_text())["weight_map"]
            absent = sorted({name for name in where.values() if not (self.path / name).is_file()})
            if absent:
                raise CheckpointError(f"{index}: names missing shards {absent[:3]}; download them again")
            return where
        where = {}
        for shard in sorted(self.path.glob("*.safetensors")):
            for name in self._names_of(shard):
                if name in where:
                    raise CheckpointError(f"{shard.name}: tensor {name} is also in {where[name]}; keep one of them")
                where[name] = shard.name
        if not where:
            raise CheckpointError(f"{self.path}: holds no *.safetensors file")
        return where

    @staticmethod
    def _names_of(shard: Path) -> list[str]:
        try:
            with safe_open(shard, framework="pt") as opened:
                return list(opened.keys())
        except SafetensorError as error:
            raise CheckpointError(f"{shard}: not a whole safetensors file ({error}); download it again") from error

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def _shard(self, name: str):
        try:
            shard = self._where[name]
        except KeyError:
            raise CheckpointError(
                f"{self.path}: tensor {name} is missing; the checkpoint is incomplete or of another layout"
            ) from None
        if shard in self._open:
            self._open.move_to_end(shard)
        else:
            while len(self._open) >= MAX_OPEN_SHARDS:
                self._open.popitem(last=False)[1].__exit__(None, None, None)
            self._open[shard] = safe_open(self.path / shard, framework="pt").__enter__()
        return self._open[shard]

    def get(self, name: str) -> torch.Tensor:
        """The tensor as stored (dtype and shape of the file)."""
        return self._shard(name).get_tensor(name)

    def row(self, name: str, index: int) -> torch.Tensor:
        """Row `index` of the first dimension, without reading the rest."""
        return self._shard(name).get_slice(name)[index]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape from the header alone."""
        return tuple(self._shard(name).get_slice(name).get_shape())
