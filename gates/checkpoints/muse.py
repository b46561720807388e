# SPDX-License-Identifier: Apache-2.0
"""Write a small Muse Spark checkpoint from a seed (text part).

    python -m gates.checkpoints.muse OUT --shape tiny --format mxfp4 --seed 17

The same seed gives the same BF16 values in both layouts; MXFP4 is their quantisation with one scale per 32 columns.
"""

import argparse
import json
from pathlib import Path

import torch

from gates.checkpoints import beam_values
from gates.checkpoints.beam_layout import Entry
from gates.checkpoints.beam_values import Statistics
from gates.checkpoints.muse_layout import GROUP, layout, mlp_types, quantization_config
from gates.checkpoints.muse_shapes import SHAPES
from gates.checkpoints.shards import write_shards

GRID = Statistics(gain=1.5, head_gain=12.0, bias_mean=0.0, bias_spread=0.3)
SERVED = Statistics(gain=1.0, head_gain=24.0, bias_mean=0.0, bias_spread=0.1, own=0.3)


def quantize(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed codes [out, in/2], E8M0 scales [out, in/32]), uint8 both, of a BF16 matrix.

    The scale puts the largest value of a group between 3 and 6, so nothing is clipped; a zero group gets scale 1.
    """
    groups = values.float().unflatten(-1, (-1, GROUP))
    peak = groups.abs().amax(-1, keepdim=True)
    exponent = torch.where(peak > 0, torch.ceil(torch.log2(peak / 6.0)), torch.zeros_like(peak)).clamp(-127, 127)
    scaled = groups / torch.exp2(exponent)
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    code = torch.bucketize(scaled.abs(), (steps[1:] + steps[:-1]) / 2)
    code = (code + 8 * (scaled < 0)).flatten(-2).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (exponent.squeeze(-1) + 127).to(torch.uint8)


def _value(seed: int, name: str, entry: Entry, how: Statistics) -> torch.Tensor:
    if entry.kind == "centred_norm":
        return 0.3 * beam_values.vector(seed, name, "embed", entry.shape, how)
    if entry.kind == "residual_gate":
        # Half of the channels keep more of the stream than of the branch; both coefficients matter.
        return 0.3 * beam_values.vector(seed, name, "embed", entry.shape, how)
    if entry.kind != "matrix":
        return beam_values.vector(seed, name, entry.kind, entry.shape, how)
    if len(entry.shape) == 2:
        return beam_values.matrix(seed, name, entry.shape, how)
    at, parts = name.rsplit(".", 1)[0], ("gate", "up") if name.endswith("gate_up_proj") else ("down",)
    shape = (entry.shape[1] // len(parts), entry.shape[2])
    return torch.stack(
        [
            torch.cat([beam_values.matrix(seed, f"{at}.{expert}.{part}_proj.weight", shape, how) for part in parts])
            for expert in range(entry.shape[0])
        ]
    )


def tensors(table: dict[str, Entry], seed: int, how: Statistics) -> dict[str, torch.Tensor]:
    """Value of every tensor of `table`, in order."""
    values = {}
    for name, entry in table.items():
        if entry.kind == "scale":
            continue
        if entry.dtype == torch.uint8:
            exact = beam_values.matrix(seed, name, (entry.shape[0], entry.shape[1] * 2), how)
            values[name], values[name + "_scale"] = quantize(exact)
        else:
            values[name] = _value(seed, name, entry, how).to(entry.dtype)
    return values


def write_config(folder: Path, config: dict, mxfp4: bool) -> None:
    """`config.json` with the layer list spelled out and, for MXFP4, Quark's section."""
    text = {**config, "dtype": "bfloat16", "mlp_layer_types": mlp_types(config)}
    wrapper = {
        "architectures": ["MuseSparkForConditionalGeneration"],
        "model_type": "muse_spark",
        "dtype": "bfloat16",
        "text_config": text,
        "image_token_id": 200092,
        "video_token_id": 200091,
        "audio_token_id": 200038,
    }
    if mxfp4:
        wrapper["quantization_config"] = quantization_config(config)
    (folder / "config.json").write_text(json.dumps(wrapper, indent=1))


def write(
    folder: str | Path,
    config: dict,
    *,
    seed: int = 17,
    how: Statistics = GRID,
    mxfp4: bool = False,
    shards: int = 3,
) -> Path:
    """Write a checkpoint of text config `config` into `folder` (created) and return it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(folder, tensors(layout(config, mxfp4=mxfp4), seed, how), shards)
    write_config(folder, config, mxfp4)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m gates.checkpoints.muse", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="served")
    parser.add_argument("--format", choices=("bf16", "mxfp4"), default="mxfp4")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--shards", type=int, default=3)
    args = parser.parse_args(arguments)
    write(args.folder, SHAPES[args.shape], seed=args.seed, how=SERVED, mxfp4=args.format == "mxfp4", shards=args.shards)
    print(f"{args.folder}: {args.shape} {args.format} seed {args.seed}")


if __name__ == "__main__":
    main()
