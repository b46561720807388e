# SPDX-License-Identifier: Apache-2.0
"""Write a large FP8 Beam checkpoint fast: matrices of the published size, for timing loads only.

Every FP8 matrix is a run of the same noise, normal numbers as a channel is quantised.

python -m gates.checkpoints.bulk OUT --experts 48
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from gates.checkpoints import beam, beam_chat
from gates.checkpoints.beam_layout import Entry, layout
from gates.checkpoints.beam_shapes import PUBLISHED
from gates.checkpoints.beam_values import E4M3_MAX

DTYPES = {torch.bfloat16: ("BF16", 2), torch.float32: ("F32", 4), torch.float8_e4m3fn: ("F8_E4M3", 1)}
SHARD = 2 << 30  # bytes
NOISE = 100.0  # standard deviation: the largest of a few thousand comes to 448


def config(experts: int) -> dict:
    """The published layers with two sparse ones, a small vocabulary, and fewer experts."""
    return {
        **PUBLISHED,
        "num_hidden_layers": 5,
        "num_experts": experts,
        "vocab_size": 8192,
        "intermediate_size": 5120,
        "max_position_embeddings": 512,
    }


def _bytes(entry: Entry, noise: np.ndarray, dice: np.random.Generator) -> bytes:
    """Noise for FP8 matrices; positive, finite numbers for all else."""
    count = int(np.prod(entry.shape))
    if entry.dtype == torch.float32:
        return (dice.random(count, dtype=np.float32) + 0.5).tobytes()
    if entry.dtype == torch.bfloat16:
        return (dice.integers(0, 128, count, dtype=np.uint16) + 0x3F80).tobytes()
    start = int(dice.integers(0, len(noise) - count))
    return noise[start : start + count].tobytes()


def write(folder: Path, experts: int) -> int:
    """Write it into `folder` (created); returns the bytes of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    facts, dice = config(experts), np.random.default_rng(17)
    values = torch.from_numpy(dice.standard_normal(96 << 20, dtype=np.float32)) * NOISE
    noise = values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    shards: list[dict[str, Entry]] = [{}]
    held = total = 0
    for name, entry in layout(facts, fp8=True).items():
        size = int(np.prod(entry.shape)) * DTYPES[entry.dtype][1]
        if held + size > SHARD:
            shards.append({})
            held = 0
        shards[-1][name] = entry
        held, total = held + size, total + size
    where = {}
    for number, table in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, at = {}, 0
        for name, entry in table.items():
            kind, item = DTYPES[entry.dtype]
            size = int(np.prod(entry.shape)) * item
            header[name] = {"dtype": kind, "shape": list(entry.shape), "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for entry in table.values():
                out.write(_bytes(entry, noise, dice))
        where.update(dict.fromkeys(table, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    beam.write_config(folder, facts, fp8=True, bf16_experts=False)
    beam_chat.write_tokenizer(folder)
    return total


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m gates.checkpoints.bulk", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", type=int, default=48, help="a multiple of 8; 48 make 4.5 GB")
    args = parser.parse_args()
    print(f"{args.folder}: {write(args.folder, args.experts)} bytes of tensors")


if __name__ == "__main__":
    main()
