# SPDX-License-Identifier: Apache-2.0
"""Write a small Beam checkpoint from a seed.

    python -m gates.checkpoints.beam OUT --shape served --format fp8 --seed 17

The same seed gives the same BF16 values in every layout; FP8 is their
per-channel quantisation, named as compressed-tensors writes it.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from gates.checkpoints import beam_chat, beam_values
from gates.checkpoints.beam_layout import Entry, layer_types, layout, mlp_types, quantization_config
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.beam_values import Statistics
from gates.checkpoints.shards import write_shards

IGNORE = ["lm_head", r"re:.*\.mlp\.gate$"]


def _packed_parts(name: str, entry: Entry) -> list[list[str]]:
    """Per expert, the names of the plain matrices a packed tensor is made of."""
    at = name.rsplit(".", 1)[0]
    parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
    return [[f"{at}.{expert}.{part}.weight" for part in parts] for expert in range(entry.shape[0])]


def _bf16(seed: int, name: str, entry: Entry, how: Statistics) -> torch.Tensor:
    if len(entry.shape) == 2:
        return beam_values.matrix(seed, name, entry.shape, how)
    experts = []
    for names in _packed_parts(name, entry):
        shape = (entry.shape[1] // len(names), entry.shape[2])
        experts.append(torch.cat([beam_values.matrix(seed, part, shape, how) for part in names]))
    return torch.stack(experts)


def tensors(
    table: dict[str, Entry], seed: int, how: Statistics, scale_dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of every tensor of `table`, in order."""
    for name, entry in table.items():
        if entry.kind == "scale":
            continue
        if entry.kind != "matrix":
            yield name, beam_values.vector(seed, name, entry.kind, entry.shape, how).to(entry.dtype)
            continue
        values = _bf16(seed, name, entry, how)
        if entry.dtype == torch.bfloat16:
            yield name, values
            continue
        weight, scale = beam_values.quantize(values, scale_dtype)
        yield name, weight
        yield name + "_scale", scale


def write_config(folder: Path, config: dict, fp8: bool, bf16_experts: bool) -> None:
    """`config.json` with layer lists spelled out, stop ids and the quantisation section."""
    ids = beam_chat.special_ids()
    full = {**config, "dtype": "bfloat16", "layer_types": layer_types(config), "mlp_layer_types": mlp_types(config)}
    full["eos_token_id"] = [ids[token] for token in beam_chat.STOP]
    full["pad_token_id"] = ids["<|endoftext|>"] if config["vocab_size"] > max(ids.values()) else None
    if fp8:
        ignore = [*IGNORE, r"re:.*\.mlp\.experts\..*"] if bf16_experts else IGNORE
        full["quantization_config"] = quantization_config(ignore)
    (folder / "config.json").write_text(json.dumps(full, indent=1))


def write(
    folder: str | Path,
    config: dict,
    *,
    seed: int = 17,
    how: Statistics = beam_values.SERVED,
    fp8: bool = False,
    packed: bool = False,
    scale_dtype: torch.dtype = torch.float32,
    bf16_experts: bool = False,
    shards: int = 3,
) -> Path:
    """Write a checkpoint into `folder` (created) and return it. Arguments as in `layout`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = layout(config, fp8=fp8, packed=packed, scale_dtype=scale_dtype, bf16_experts=bf16_experts)
    values = dict(tensors(table, seed, how, scale_dtype))
    write_shards(folder, values, shards)
    write_config(folder, config, fp8, bf16_experts)
    beam_chat.write_tokenizer(folder)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m gates.checkpoints.beam", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="served")
    parser.add_argument("--format", choices=("bf16", "fp8"), default="fp8")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--packed", action="store_true", help="experts as two stacked tensors a layer")
    parser.add_argument("--bf16-experts", action="store_true", help="FP8 everywhere but in the experts")
    parser.add_argument("--scale-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--hostile", action="store_true", help="near-ties, wide scale range, a zero channel")
    parser.add_argument("--shards", type=int, default=3)
    args = parser.parse_args(arguments)
    how = beam_values.HOSTILE if args.hostile else beam_values.SERVED
    write(args.folder, SHAPES[args.shape], seed=args.seed, how=how, fp8=args.format == "fp8", packed=args.packed,
          scale_dtype=getattr(torch, args.scale_dtype), bf16_experts=args.bf16_experts, shards=args.shards)  # fmt: skip
    print(f"{args.folder}: {args.shape} {args.format} seed {args.seed}")


if __name__ == "__main__":
    main()
