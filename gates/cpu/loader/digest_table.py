# SPDX-License-Identifier: Apache-2.0
"""The published table of state digests, by checkpoint, parallel layout and lock: printed, compared or written anew.

    python gates/cpu/loader/digest_table.py [--check | --update] [--stock]

A checkpoint is known by the digest of its files; its state is that of all ranks' digests in order. A row speaks for the
lock it names: another stack may rightly have another state. `--update` loads with both loaders, and writes only what
both agree on; `--stock` prints or compares that of vLLM's own. Exit code 1 when states differ.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("PT_HPU_LAZY_MODE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(Path(__file__).parents[1] / "beam"), str(ROOT)]

from gates.checkpoints import beam, muse  # noqa: E402
from gates.checkpoints.beam_values import HOSTILE  # noqa: E402
from gates.checkpoints.muse_shapes import SHAPES as MUSE_SHAPES  # noqa: E402

DOC = ROOT / "docs" / "loader.md"
BEGIN, END = "<!-- generated: python gates/cpu/loader/digest_table.py --update -->", "<!-- end -->"
HEAD = "| checkpoint | files | TP | EP | state | lock |\n|---|---|---|---|---|---|\n"
CHECKPOINTS = ("beam bf16", "beam fp8", "muse bf16", "muse mxfp4")
LAYOUTS = [(tp, ep) for tp in (1, 2, 4, 8) for ep in (False, True) if tp > 1 or not ep]


@dataclass(frozen=True)
class Row:
    """A line of the table. `files` and `state` are the first 16 hex digits of SHA-256 digests."""

    checkpoint: str
    files: str
    tp: int
    ep: bool
    state: str
    lock: str

    def __str__(self) -> str:
        ep = "on" if self.ep else "off"
        return f"| {self.checkpoint} | `{self.files}` | {self.tp} | {ep} | `{self.state}` | `{self.lock}` |"


def write(name: str, folder: Path) -> Path:
    """The synthetic checkpoint `name` of the table."""
    from rank_model import SHAPE

    model, kind = name.split()
    if model == "muse":
        return muse.write(folder, MUSE_SHAPES["tiny"], mxfp4=kind == "mxfp4")
    return beam.write(folder, SHAPE, how=HOSTILE, fp8=kind == "fp8")


def files_digest(folder: Path) -> str:
    """Over the names and bytes of all shards, in order of their names."""
    whole = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        whole.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def state(folder: Path, tp: int, ep: bool, stock: bool) -> str:
    """Of all ranks, each loaded on its own."""
    from rank_model import load

    from vllm_gaudi.loader.state_hash import state_digest

    ranks = (state_digest(load(folder, "auto" if stock else "frontier", tp, rank, ep))[0] for rank in range(tp))
    return hashlib.sha256("\n".join(ranks).encode()).hexdigest()[:16]


def lock() -> str:
    """Of this checkout."""
    line = next(line for line in (ROOT / "upstream.lock").read_text().splitlines() if line.startswith("lock-hash"))
    return line.split('"')[1][:8]


def published(text: str) -> list[Row]:
    """The rows in the document."""
    rows = []
    for line in text.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0] in CHECKPOINTS:
            rows.append(Row(cells[0], cells[1], int(cells[2]), cells[3] == "on", cells[4], cells[5]))
    return rows


def published_for(files: str, tp: int, ep: bool) -> Row | None:
    """The row of these files and this layout."""
    found = (row for row in published(DOC.read_text()) if (row.files, row.tp, row.ep) == (files, tp, ep))
    return next(found, None)


def made(name: str, stock: bool) -> Iterator[Row]:
    """The rows of one checkpoint."""
    with tempfile.TemporaryDirectory() as place:
        folder = write(name, Path(place) / "model")
        files = files_digest(folder)
        for tp, ep in LAYOUTS:
            yield Row(name, files, tp, ep, state(folder, tp, ep, stock), lock())


def publish(rows: list[Row]) -> None:
    """Put `rows` into the document, in place of those of their checkpoints."""
    text = DOC.read_text()
    kept = [row for row in published(text) if row.checkpoint not in {new.checkpoint for new in rows}]
    order = sorted([*kept, *rows], key=lambda row: (CHECKPOINTS.index(row.checkpoint), row.tp, row.ep))
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    DOC.write_text(f"{head}{BEGIN}\n{HEAD}" + "".join(f"{row}\n" for row in order) + END + tail)


def difference(row: Row) -> str:
    """How `row` differs from the document, or nothing."""
    there = published_for(row.files, row.tp, row.ep)
    if there is None:
        return f"not in {DOC.name}"
    if there.state == row.state:
        return ""
    meant = "" if there.lock == row.lock else ", of another lock; if that change of state is meant, use --update"
    return f"{DOC.name} has {there.state} at lock {there.lock}{meant}"


def main(words: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the document")
    what.add_argument("--update", action="store_true", help="write the document's table")
    parser.add_argument("--stock", action="store_true", help="load with vLLM's own loader")
    parser.add_argument("--checkpoint", action="append", choices=CHECKPOINTS, help="default: all")
    args = parser.parse_args(words)
    wrong = 0
    for name in args.checkpoint or CHECKPOINTS:
        rows, spoiled = [], 0
        for row in made(name, args.stock):
            rows.append(row)
            why = difference(row) if args.check else ""
            print(f"{row}{f'  {why}' if why else ''}", flush=True)
            spoiled += bool(why)
        if args.update:
            for row, other in zip(rows, made(name, stock=not args.stock), strict=True):
                if row != other:
                    spoiled += 1
                    print(f"{other}  of the other loader; nothing of {name} is written", flush=True)
            if not spoiled:
                publish(rows)
        wrong += spoiled
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
