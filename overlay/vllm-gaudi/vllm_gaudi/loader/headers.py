# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint and where their bytes lie, from the safetensors headers alone.

The safetensors format: 8 bytes little-endian header length, a JSON object of
tensor name -> dtype, shape and `data_offsets` relative to the end of the header,
then the data. Nothing here imports torch, and no tensor data is read.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

INDEX = "model.safetensors.index.json"
# The limit of the format's own library; a longer header is a lie about its length.
MAX_HEADER = 100_000_000
# Bytes an element; dtypes that pack several elements into a byte are not among them.
ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that must not be served: which file and tensor, what is wrong, what to do."""


@dataclass(frozen=True)
class Stored:
    """One tensor on disk: `dtype` as the format spells it, `offset` in bytes from the start of `file`."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_checkpoint(folder: str | Path) -> dict[str, Stored]:
    """Every tensor of the checkpoint in `folder`, by name.

    Raises:
        CheckpointError: no shards, a malformed index or header, a tensor in two
            shards or in another than the index says, a shard the index does not know.
    """
    folder = Path(folder)
    tensors: dict[str, Stored] = {}
    where = read_index(folder)
    for file in _shards(folder, where):
        for stored in read_header(file):
            if stored.name in tensors:
                raise CheckpointError(
                    f"{file}: tensor {stored.name} is also in {tensors[stored.name].file}; remove the extra shard"
                )
            if where is not None and where.get(stored.name) != file.name:
                raise CheckpointError(
                    f"{file}: tensor {stored.name} is in this shard, but {INDEX} says "
                    f"{where.get(stored.name, 'nothing of it')}; download both again"
                )
            tensors[stored.name] = stored
    missing = [name for name in where or () if name not in tensors]
    if missing:
        name = missing[0]
        raise CheckpointError(
            f"{folder / where[name]}: {INDEX} promises tensor {name} (and {len(missing) - 1} others) that the "
            "shards do not hold; download the shard again"
        )
    return tensors


def read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name -> file name of the index in `folder`; None without an index.

    Raises:
        CheckpointError: not a JSON object with a `weight_map` of plain file names of existing files.
    """
    path = folder / INDEX
    if path.name not in _listing(folder):
        return None
    try:
        with open_regular(path) as handle:
            text = handle.read()
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        where = _json(text)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: no readable index ({error}); download it again") from None
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise CheckpointError(f"{path}: weight_map does not map tensor names to file names; download it again")
    first: dict[str, str] = {}
    for name, file in where.items():
        first.setdefault(file, name)
    for file, name in first.items():
        if file != os.path.basename(file) or file in ("", ".", "..") or "\\" in file or "\0" in file:
            raise CheckpointError(
                f"{path}: tensor {name} points to {file!r}, which is no file name in this folder; do not use this "
                "checkpoint"
            )
        try:
            open_regular(folder / file).close()
        except FileNotFoundError:
            raise CheckpointError(
                f"{_shown(folder / file)}: missing, {path} puts tensor {name} there; download the shard"
            ) from None
        except OSError as error:
            raise _unreadable(folder / file, error, f" ({path} puts tensor {name[:200]} there)") from error
    return where


def open_regular(file: str | Path) -> BinaryIO:
    """Open a regular file for reading; never waits, as opening a pipe would.

    Raises:
        CheckpointError: it is a folder, a pipe, a socket or a device.
        OSError: as the file system reports it.
    """
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise CheckpointError(f"{_shown(file)}: not a regular file; download it again")
    return os.fdopen(number, "rb")


def _shown(file: str | Path) -> str:
    text = str(file)
    return text if len(text) <= 400 else f"{text[:400]}... ({len(text)} characters)"


def _unreadable(file: str | Path, error: OSError, where: str = "") -> CheckpointError:
    return CheckpointError(
        f"{_shown(file)}: {error.strerror or error}{where}; check the file, its permissions and the mount"
    )


def _listing(folder: Path) -> list[str]:
    """The names in `folder`, those of dangling links among them."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise _unreadable(folder, error) from error


def _shards(folder: Path, where: dict[str, str] | None) -> list[Path]:
    # A dot in front hides a file, as of "*": macOS leaves such copies ("._model.safetensors") that hold no tensors.
    found = [folder / name for name in _listing(folder) if name.endswith(".safetensors") and name[0] != "."]
    if not found:
        raise CheckpointError(f"{folder}: no *.safetensors file; this load format reads safetensors only")
    if where is not None:
        extra = sorted({file.name for file in found} - set(where.values()))
        if extra:
            raise CheckpointError(
                f"{folder / extra[0]}: not in {INDEX} ({len(extra)} such files); remove what is not of this checkpoint"
            )
    return found


def read_header(file: str | Path) -> list[Stored]:
    """The tensors of one file, in the order of their offsets.

    Raises:
        CheckpointError: the file is not a regular one, or its header is malformed,
            leaves gaps, overlaps or does not describe the file's size.
    """
    try:
        with open_regular(file) as handle:
            status = os.fstat(handle.fileno())
            length = int.from_bytes(handle.read(8), "little")
            if status.st_size < 8 or length > min(MAX_HEADER, status.st_size - 8):
                raise CheckpointError(
                    f"{file}: header of {length} bytes at offset 8 in a file of {status.st_size}; the file is "
                    "truncated or no safetensors file, download it again"
                )
            text = handle.read(length)
    except OSError as error:
        raise _unreadable(file, error) from error
    try:
        header = _json(text)
        if not isinstance(header, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: header at offset 8 is not valid JSON ({error}); download it again") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{file}: __metadata__ in the header is no object of strings; download it again")
    tensors = [_entry(str(file), name, entry, 8 + length) for name, entry in header.items()]
    tensors.sort(key=lambda stored: (stored.offset, stored.nbytes))
    _check_contiguous(str(file), tensors, 8 + length, status.st_size)
    return tensors


def _json(text: bytes) -> Any:
    """Parsed JSON; a repeated key or a non-finite number is refused, for readers differ on what they mean."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise ValueError(f"key {twice!r} occurs twice")
        return table

    def refuse(constant: str) -> None:
        raise ValueError(f"number {constant}")

    return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _entry(file: str, name: str, entry: Any, data: int) -> Stored:
    def refuse(why: str) -> CheckpointError:
        return CheckpointError(f"{file}: tensor {name}: {why}; download the file again")

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise refuse("header entry lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise CheckpointError(f"{file}: tensor {name}: dtype {dtype!r} is none of {', '.join(ITEM_SIZES)}")
    if not _counts(shape) or len(shape) > 8:
        raise refuse(f"shape {str(shape)[:80]} is no list of up to 8 sizes")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse(f"data_offsets {str(offsets)[:80]} are no range")
    size = ITEM_SIZES[dtype]
    for extent in shape:
        size *= extent
    if size != offsets[1] - offsets[0]:
        raise refuse(f"{dtype} {shape} is {size} bytes, data_offsets {offsets} hold {offsets[1] - offsets[0]}")
    return Stored(name, file, dtype, tuple(shape), data + offsets[0], size)


def _check_contiguous(file: str, tensors: list[Stored], start: int, size: int) -> None:
    """The format allows no gaps and no overlaps, so the ranges in order must tile the data."""
    for stored in tensors:
        if stored.offset + stored.nbytes > size:
            raise CheckpointError(
                f"{file}: tensor {stored.name} at offset {stored.offset} ends at {stored.offset + stored.nbytes}, the "
                f"file at {size}; it is truncated, download it again"
            )
        if stored.offset != start:
            what = "overlaps the tensor before it" if stored.offset < start else "leaves a gap before it"
            raise CheckpointError(f"{file}: tensor {stored.name} at offset {stored.offset} {what} ({start} expected)")
        start += stored.nbytes
    if start != size:
        raise CheckpointError(f"{file}: data end at offset {start}, the file at {size}; download it again")
