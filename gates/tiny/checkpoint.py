# SPDX-License-Identifier: Apache-2.0
"""The tiny Beam as a served checkpoint, from the weights beside this file.

python -m gates.tiny.checkpoint OUT                      # FP8 as published (compressed-tensors, channel scales)
python -m gates.tiny.checkpoint OUT --format bf16        # the same values in BF16
python -m gates.tiny.checkpoint OUT --trained FOLDER     # of a training run instead
python -m gates.tiny.checkpoint --trained FOLDER --keep  # make that run's weights the ones beside this file
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gates.checkpoints import beam, beam_chat, beam_values
from gates.checkpoints.beam_layout import layout
from gates.checkpoints.beam_shapes import PUBLISHED
from gates.checkpoints.shards import write_shards
from gates.tiny import start

WEIGHTS = Path(__file__).with_name("weights.safetensors")
CONFIG = {**PUBLISHED, **start.CONFIG}


def split_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """HF's stacked expert tensors as one tensor a matrix, the names of the published checkpoint."""
    out = {}
    for name, value in state.items():
        at, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj"):
            out[name] = value
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if last == "gate_up_proj":
                gate, up = matrix.chunk(2)
                parts = {"gate_proj": gate, "up_proj": up}
            out |= {f"{at}.{expert}.{part}.weight": weight for part, weight in parts.items()}
    return out


def quantized(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All tensors of the FP8 layout from HF's state (fp32, experts stacked).

    Raises:
        ValueError: a tensor is missing, has another shape, or has no place in the layout.
    """
    values, found = {}, split_experts(state)
    for name, entry in layout(CONFIG, fp8=True).items():
        if entry.kind == "scale":
            continue
        value = found.pop(name, None)
        if value is None or tuple(value.shape) != entry.shape:
            raise ValueError(f"{name}: {value if value is None else tuple(value.shape)}, the layout has {entry.shape}")
        if entry.dtype == torch.float8_e4m3fn:
            weight, scale = beam_values.quantize(value.detach().to(torch.bfloat16), torch.float32)
            values |= {name: weight, name + "_scale": scale}
        else:
            values[name] = value.detach().to(entry.dtype)
    if found:
        raise ValueError(f"tensors without a place in the layout: {sorted(found)}")
    return values


def dequantized(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The BF16 layout of `quantized` tensors, rounded once more."""
    out = {}
    for name, value in values.items():
        if name.endswith("_scale"):
            continue
        scale = values.get(name + "_scale")
        out[name] = value if scale is None else (value.float() * scale.float()).to(torch.bfloat16)
    return out


def trained(folder: Path) -> dict[str, torch.Tensor]:
    """The FP8 tensors of a training run (gates/tiny/train.py)."""
    return quantized(torch.load(folder / "training.pt", weights_only=True)["model"])


def write(folder: Path, *, fp8: bool = True, values: dict[str, torch.Tensor] | None = None) -> Path:
    """Write the checkpoint into `folder` (created) and return it; `values`: `quantized` tensors instead of the kept."""
    folder.mkdir(parents=True, exist_ok=True)
    values = values or load_file(WEIGHTS)
    write_shards(folder, values if fp8 else dequantized(values), 1)
    beam.write_config(folder, CONFIG, fp8, bf16_experts=False)
    beam_chat.write_tokenizer(folder)
    return folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.tiny.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--format", choices=("fp8", "bf16"), default="fp8")
    parser.add_argument("--trained", type=Path, help="folder of gates.tiny.train")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args(arguments)
    if args.folder is None and not args.keep:
        parser.error("name a folder to write the checkpoint into")
    values = trained(args.trained) if args.trained else load_file(WEIGHTS)
    if args.keep:
        save_file(values, WEIGHTS, metadata={"format": "pt"})
        print(WEIGHTS)
    if args.folder:
        print(write(args.folder, fp8=args.format == "fp8", values=values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
