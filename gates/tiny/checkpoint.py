# SPDX-License-Identifier: Apache-2.0
"""A tiny model as a served checkpoint, from the weights beside this file.

python -m gates.tiny.checkpoint OUT                      # Beam in FP8 as published (compressed-tensors, channel scales)
python -m gates.tiny.checkpoint OUT --model muse         # Muse in MXFP4 as published (Quark)
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

from gates.checkpoints.shards import write_shards
from gates.tiny.family import NAMES, Family, Tensors, family


def trained(folder: Path, which: Family) -> Tensors:
    """The quantised tensors of a training run (gates/tiny/train.py)."""
    return which.quantized(torch.load(folder / "training.pt", weights_only=True)["model"])


def write(folder: Path, model: str = "beam", *, quantised: bool = True, values: Tensors | None = None) -> Path:
    """Write the checkpoint into `folder` (created) and return it; `values`: quantised tensors instead of the kept."""
    which = family(model)
    folder.mkdir(parents=True, exist_ok=True)
    values = values or load_file(which.weights)
    write_shards(folder, values if quantised else which.full(values), 1)
    which.write_config(folder, quantised)
    which.write_tokenizer(folder)
    return folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.tiny.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--model", choices=NAMES, default="beam")
    parser.add_argument("--format", choices=("quantised", "bf16"), default="quantised")
    parser.add_argument("--trained", type=Path, help="folder of gates.tiny.train")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args(arguments)
    if args.folder is None and not args.keep:
        parser.error("name a folder to write the checkpoint into")
    which = family(args.model)
    values = trained(args.trained, which) if args.trained else load_file(which.weights)
    if args.keep:
        save_file(values, which.weights, metadata={"format": "pt"})
        print(which.weights)
    if args.folder:
        print(write(args.folder, args.model, quantised=args.format == "quantised", values=values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
