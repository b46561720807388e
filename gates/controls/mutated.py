# SPDX-License-Identifier: Apache-2.0
"""`python -m gates.controls.mutated`: the trained tiny Beam from mutated builds on the emulated Gaudi, gate by gate.

The healthy build runs first and records what the recording gates compare with; then one server a mutant. A row must be
red on its own gates and green on the rest. In the serving environment; some minutes a mutant.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gates.controls import matrix, mutants
from gates.core import gate
from gates.core.result import Verdict
from gates.tiny import checkpoint, serve

GATES = ("api-models", "canary", "cache-honesty", "copy", "decode-vs-prefill", "kl-divergence", "needles", "perplexity",
         "ruler-multi-key", "top1-agreement")  # fmt: skip
PASSAGE = "LICENSE"  # English, which the tiny Beam never read: there every rounding shows
ROOT = Path(__file__).resolve().parents[2]

# Gates that must be red on a mutant, and gates that may be: the fault reaches them, how far depends on the model.
DUE: dict[str, tuple[set[str], set[str]]] = {
    "rounded-router": ({"kl-divergence"}, {"perplexity", "top1-agreement", "canary"}),
    "swapped-experts": ({"kl-divergence"}, {"perplexity", "top1-agreement", "canary", "copy", "needles",
                                           "ruler-multi-key"}),
    "shifted-logits": ({"kl-divergence", "perplexity", "canary"}, {"top1-agreement"}),
    "window-off-by-one": ({"decode-vs-prefill"}, {"cache-honesty"}),
    "stale-prefix": ({"cache-honesty"}, set()),
}  # fmt: skip


def make(folder: Path, model: str = "beam") -> tuple[Path, Path]:
    """(served checkpoint, scores of the CPU reference): Beam in BF16, where a good server is nearest to itself, Muse
    with MXFP4 experts and BF16 activations, as it is served."""
    from gates.oracle import passages

    served = checkpoint.write(folder / "checkpoint", model, quantised=model == "muse")
    scores = folder / "scores.json"
    arguments = [str(served), "--text", str(ROOT / PASSAGE), "--longest", "1024", "--out", str(scores)]
    arguments += ["--mode", "w4a16"] if model == "muse" else []
    if passages.main(arguments):
        raise RuntimeError("the reference scores could not be made")
    return served, scores


def row(
    served: Path, scores: Path, cache: Path, name: str | None, names: Iterable[str] = GATES
) -> dict[str, tuple[Verdict, str]]:
    """Verdicts of the gates against one build; None is the healthy one."""
    chosen = [entry for entry in gate.discover().values() if entry.name in set(names)]
    judge = matrix.verdicts if name else matrix.settled
    with serve.serve(served, env=mutants.environment(name) if name else None) as server:
        return judge(matrix.context(server.url, cache, profile_name="tiny", reference=scores), chosen)


def wrong(name: str, seen: dict[str, tuple[Verdict, str]]) -> tuple[set[str], dict[str, str]]:
    """(gates that should be red and are not, gates that are red without being due)."""
    must, may = DUE[name]
    red = {gate_name: reason for gate_name, (verdict, reason) in seen.items()
           if verdict in (Verdict.FAIL, Verdict.ERROR)}  # fmt: skip
    missed = {gate_name for gate_name in must if seen[gate_name][0] is not Verdict.FAIL}
    return missed, {gate_name: reason for gate_name, reason in red.items() if gate_name not in must | may}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.controls.mutated", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], choices=sorted(mutants.BUILDS), help="repeatable")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutated")
    args = parser.parse_args(argv)
    served, scores = make(args.folder)
    good = Path(tempfile.mkdtemp(prefix="gate-mutated-"))
    healthy = row(served, scores, good, None)
    bad = {k: v for k, v in healthy.items() if v[0] not in (Verdict.PASS, Verdict.SKIP)}
    print("healthy:", bad or "green", flush=True)
    failures = len(bad)
    for name in args.only or sorted(mutants.BUILDS):
        cache = Path(tempfile.mkdtemp(prefix="gate-mutated-"))
        shutil.copytree(good, cache, dirs_exist_ok=True)
        seen = row(served, scores, cache, name)
        missed, extra = wrong(name, seen)
        failures += bool(missed or extra)
        red = {k: reason for k, (verdict, reason) in seen.items() if verdict is Verdict.FAIL}
        print(f"{name}: red {red}; missed {sorted(missed)}; unexpected {extra}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
