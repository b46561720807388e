# SPDX-License-Identifier: Apache-2.0
"""Score token ids with a CPU reference, or run some layers of it.

    python -m gates.oracle.score CHECKPOINT --tokens ids.json --mode w8a8
    python -m gates.oracle.score CHECKPOINT --tokens ids.json --stop-layer 4 --out hidden.safetensors
    python -m gates.oracle.score CHECKPOINT --hidden hidden.safetensors --start-layer 4

`ids.json` is a list of token ids. Without layer limits each position prints one
JSON line: the log-probability of the next token, its rank, the best tokens, and
the gap between the first two. `--steps` writes every step output to `--out`.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gates.oracle.checkpoint import Checkpoint, CheckpointError

REFERENCES = {
    "beam": ("gates.oracle.beam.model", "BeamReference"),
    "muse_spark": ("gates.oracle.muse.model", "MuseReference"),
    "muse_spark_text": ("gates.oracle.muse.model", "MuseReference"),
}


def reference(checkpoint: str, mode: str, **options):
    """The reference class for the checkpoint's model type, ready to run."""
    model_type = Checkpoint(checkpoint).config.get("model_type")
    if model_type not in REFERENCES:
        known = ", ".join(sorted(REFERENCES))
        raise CheckpointError(f"{checkpoint}: no reference for model_type {model_type!r}; there are {known}")
    module, name = REFERENCES[model_type]
    return getattr(importlib.import_module(module), name)(checkpoint, mode, **options)


def token_scores(logits: torch.Tensor, ids: torch.Tensor, best: int) -> list[dict]:
    """One record a position of `logits` [T, V]: how position t scores token t + 1 (absent at the end)."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, tokens = logprobs.topk(best, dim=-1)
    records = []
    for position in range(logits.shape[0]):
        record = {
            "position": position,
            "top": [[int(t), round(float(v), 6)] for t, v in zip(tokens[position], values[position], strict=True)],
            "gap": round(float(values[position, 0] - values[position, 1]), 6),
        }
        if position + 1 < ids.shape[0]:
            chosen = logprobs[position, ids[position + 1]]
            record |= {
                "next": int(ids[position + 1]),
                "logprob": round(float(chosen), 6),
                "rank": int((logprobs[position] > chosen).sum()),
            }
        records.append(record)
    return records


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gates.oracle.score", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--mode", default="bf16", help="fp32, bf16 (default), w8a8 (Beam), w4a16 (Muse)")
    parser.add_argument("--tokens", type=Path, help="JSON list of token ids")
    parser.add_argument("--hidden", type=Path, help="safetensors with `hidden` [T, H] to start from")
    parser.add_argument("--start-layer", type=int, default=0)
    parser.add_argument("--stop-layer", type=int, help="stop before this layer and write the hidden states to --out")
    parser.add_argument("--steps", action="store_true", help="write every step output to --out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--top", type=int, default=5, help="tokens to print a position")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 on success, 2 on unusable input."""
    args = _parser().parse_args(arguments)
    seen: dict[str, torch.Tensor] = {}
    try:
        if (args.tokens is None) == (args.hidden is None):
            raise CheckpointError("give either --tokens or --hidden")
        if args.out is None and (args.steps or args.stop_layer is not None):
            raise CheckpointError("--steps and --stop-layer need --out FILE.safetensors")
        options = {"trace": lambda name, value: seen.__setitem__(name, value.clone())} if args.steps else {}
        model = reference(args.checkpoint, args.mode, **options)
        ids = torch.tensor(json.loads(args.tokens.read_text())) if args.tokens else torch.zeros(0, dtype=torch.long)
        with torch.inference_mode():
            hidden = model.embed(ids) if args.tokens else load_file(args.hidden)["hidden"].to(model.dtype)
            positions = torch.arange(hidden.shape[0])
            hidden = model.run_layers(hidden, positions, args.start_layer, args.stop_layer)
            if args.stop_layer is None:
                for record in token_scores(model.head(hidden), ids, args.top):
                    print(json.dumps(record))
        if args.out is not None:
            save_file({"hidden": hidden.contiguous(), **{k: v.contiguous() for k, v in seen.items()}}, args.out)
    except CheckpointError as error:
        print(f"score: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
