# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers as the independent judge of generated tokens, teacher-forced.

    verdicts = judge([(checkpoint, prompts, outputs), ...])      # a process of its own, without the emulation

For each generated token: does it equal the reference's argmax, and if not, how far below the best logit does it lie
(the gap)? The reference runs in bf16, in fp32 and with the inputs of routers and quantisers moved as rounding moves
them; the smallest gap counts, since where rounding decides a token or an expert, either choice is right.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gates.hpusim import testing

# Two bf16 steps of a logit between 4 and 8: what a different summation order can move.
NEAR_TIE = 0.0625
NOISE_SEEDS = 12


@dataclass(frozen=True)
class Verdict:
    """agree: share of tokens equal to the reference's choice; gaps: (deficit, prompt, position) of the others."""

    agree: float
    gaps: list[list[float]]  # largest first
    spread: float  # standard deviation of the reference's logits, the yardstick of a gap

    @property
    def largest(self) -> float:
        return self.gaps[0][0] if self.gaps else 0.0

    def __str__(self) -> str:
        return f"agree {self.agree:.3f}, largest gap {self.largest:.3f}, logit spread {self.spread:.2f}"


def judge(cases: list[tuple[Path, list[list[int]], list[list[int]]]], timeout: float = 600) -> list[Verdict]:
    """One verdict a case `(checkpoint, prompt ids, generated ids)`; AssertionError with the log on a failure."""
    jobs = [{"model": str(model), "prompts": prompts, "outputs": outputs} for model, prompts, outputs in cases]
    with tempfile.TemporaryDirectory(prefix="hpusim-") as name:
        job, answer = Path(name) / "job.json", Path(name) / "answer.json"
        job.write_text(json.dumps(jobs))
        command = [sys.executable, "-m", "gates.hpusim.reference", str(job), str(answer)]
        done = subprocess.run(
            command,
            env=testing.environment(HPUSIM_OFF="1"),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"reference run: exit code {done.returncode}\n{done.stderr[-4000:]}"
        return [Verdict(**verdict) for verdict in json.loads(answer.read_text())]


def _logits(model: Any, prompt: list[int], output: list[int]) -> Any:
    import torch

    ids = torch.tensor([prompt + output])
    with torch.inference_mode():
        return model(ids).logits[0, len(prompt) - 1 : -1].float()


def _judge(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from gates.hpusim import reference_quant

    def run(model: Any) -> list[Any]:
        return [_logits(model, p, o) for p, o in zip(job["prompts"], job["outputs"], strict=True)]

    runs = [run(reference_quant.load(Path(job["model"]), dtype)) for dtype in (torch.bfloat16, torch.float32)]
    model = reference_quant.load(Path(job["model"]), torch.float32)
    generator = torch.Generator()
    if reference_quant.disturb(model, generator):
        for seed in range(NOISE_SEEDS):
            generator.manual_seed(seed)
            runs.append(run(model))
    gaps: list[tuple[float, int, int]] = []
    for row, output in enumerate(job["outputs"]):
        chosen = torch.tensor(output)[:, None]
        deficits = [logits[row].max(-1).values - logits[row].gather(-1, chosen)[:, 0] for logits in runs]
        gap = torch.stack(deficits).min(0).values
        gaps += [(round(float(value), 4), row, position) for position, value in enumerate(gap) if value > 0]
    total = sum(map(len, job["outputs"]))
    spread = sum(float(logits.std()) for logits in runs[1]) / len(runs[1])
    return {"agree": 1 - len(gaps) / max(total, 1), "gaps": sorted(gaps, reverse=True), "spread": spread}


def main(job: str, answer: str) -> None:
    verdicts = [_judge(entry) for entry in json.loads(Path(job).read_text())]
    Path(answer).write_text(json.dumps(verdicts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
