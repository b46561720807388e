# SPDX-License-Identifier: Apache-2.0
"""Score passages with a CPU reference into the file that the gates' `--reference` takes.

    python -m gates.oracle.passages CHECKPOINT --text book.txt --text code.py --out scores.json
    python -m gates.oracle.passages CHECKPOINT --tokens ids.json --mode w8a8 --out scores.json

A text file is one passage, tokenised with the checkpoint's own tokenizer; `ids.json` maps passage names to lists of
token ids. A file that already holds the same checkpoint, mode and passages is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import torch

from gates.core.reference import SCHEMA
from gates.oracle.checkpoint import CheckpointError
from gates.oracle.score import reference, token_scores


def digest(checkpoint: Path) -> str:
    """Start of the SHA-256 over config and weight files, by name."""
    total = hashlib.sha256()
    for path in sorted([checkpoint / "config.json", *checkpoint.glob("*.safetensors")]):
        total.update(path.name.encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]


def read(checkpoint: Path, texts: list[Path], tokens: Path | None, longest: int) -> dict[str, list[int]]:
    """Passages by name, each cut to `longest` tokens.

    Raises:
        CheckpointError: none given, one unreadable or too short to score, or two of one name.
    """
    passages: dict[str, list[int]] = {}
    listed: dict[str, list[int]] = {}
    if twice := [name for name, count in Counter(path.stem for path in texts).items() if count > 1]:
        raise CheckpointError(f"two texts are named `{twice[0]}`; a passage is known by its file's name: rename one")
    try:
        if texts:
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
            for path in texts:
                passages[path.stem] = tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)
        if tokens:
            listed = {str(name): [int(t) for t in ids] for name, ids in json.loads(tokens.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read the passages ({error}); give text files, or JSON of name to ids") from error
    if both := passages.keys() & listed.keys():
        raise CheckpointError(f"a text and a passage of {tokens} are named `{min(both)}`: rename one")
    passages |= listed
    if not passages or any(len(ids) < 2 for ids in passages.values()):
        raise CheckpointError("no passage of two tokens or more: give --text or --tokens")
    return {name: ids[:longest] for name, ids in passages.items()}


@torch.inference_mode()
def scores(checkpoint: Path, mode: str, passages: dict[str, list[int]], top: int) -> list[dict]:
    """One entry a passage, as gates/core/reference.py describes it."""
    model, out = reference(str(checkpoint), mode), []
    for name, tokens in passages.items():
        ids = torch.tensor(tokens)
        rows = token_scores(model.head(model.run_layers(model.embed(ids), torch.arange(len(tokens)))), ids, top)[:-1]
        listed = [dict(row["top"]) for row in rows]
        out.append({"name": name, "tokens": tokens, "logprobs": [row["logprob"] for row in rows], "top": listed})
        print(f"{name}: {len(tokens)} tokens", file=sys.stderr, flush=True)
    return out


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 on success, 2 on unusable input."""
    parser = argparse.ArgumentParser(prog="python -m gates.oracle.passages", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, action="append", default=[], help="repeatable")
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--longest", type=int, default=2048, help="tokens of a passage")
    parser.add_argument("--mode", default="bf16", help="fp32, bf16 (default), w8a8 (Beam), w4a16 (Muse)")
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    try:
        passages = read(args.checkpoint, args.text, args.tokens, args.longest)
        head = {"schema": SCHEMA, "checkpoint": digest(args.checkpoint), "mode": args.mode}
        if args.out.exists():
            known = json.loads(args.out.read_text())
            same = {p["name"]: p["tokens"] for p in known.pop("passages", [])} == passages
            if same and known == head:
                print(f"{args.out}: already scored", file=sys.stderr)
                return 0
        made = {**head, "passages": scores(args.checkpoint, args.mode, passages, args.top)}
    except (CheckpointError, ValueError) as error:
        print(f"passages: {error}", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
