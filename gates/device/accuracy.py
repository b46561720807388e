# SPDX-License-Identifier: Apache-2.0
"""Task accuracy through lm-evaluation-harness against the server; its standard error is kept.

The harness loads its data sets from a hub: where it is not installed or the hub is out of reach the gate is SKIPped.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gates.core.errors import GateError
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult, Measurement

TASK, METRIC, LIMIT = "gsm8k", "exact_match,flexible-extract", 200


def command(ctx: Context, out: Path) -> list[str]:
    """The harness's command line for this server."""
    model = {
        "model": ctx.client.model,
        "base_url": f"{ctx.client.root}/v1/chat/completions",
        "num_concurrent": ctx.profile.concurrency,
        "tokenized_requests": False,
    }
    arguments = {
        "--model": "local-chat-completions",
        "--model_args": ",".join(f"{k}={v}" for k, v in model.items()),
        "--tasks": TASK,
        "--limit": str(LIMIT),
        "--output_path": str(out),
        "--gen_kwargs": f"max_gen_toks={ctx.profile.answer_tokens}",
    }
    return [sys.executable, "-m", "lm_eval", "--apply_chat_template", *(x for pair in arguments.items() for x in pair)]


def parse(data: dict[str, Any]) -> tuple[float, float]:
    """(score, standard error) of the harness's result file.

    Raises:
        GateError: the task or the metric is missing.
    """
    try:
        block = data["results"][TASK]
        name, variant = METRIC.split(",")
        return float(block[METRIC]), float(block[f"{name}_stderr,{variant}"])
    except (KeyError, TypeError, ValueError) as error:
        raise GateError(
            f"no {METRIC} of {TASK} in the harness's results ({error!r})", action="is its version the pinned one?"
        ) from error


def _run(ctx: Context) -> GateResult:
    if importlib.util.find_spec("lm_eval") is None:
        raise Skip("lm-evaluation-harness is not installed (pip install lm-eval)")
    if not ctx.wording.can("arithmetic"):
        raise Skip("needs a model that can do arithmetic")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command(ctx, Path(folder)), capture_output=True, text=True, timeout=ctx.profile.gate_deadline_s
        )
        files = sorted(Path(folder).rglob("results*.json"))
        if done.returncode or not files:
            raise Skip(f"the harness did not run: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        score, error = parse(json.loads(files[-1].read_text()))
    measurement = Measurement(score, "share", score - 1.96 * error, score + 1.96 * error, LIMIT)
    return judge(ctx, "accuracy-gsm8k", measurement, details={"stderr": error, "task": TASK, "limit": LIMIT})


GATE = Gate(
    "accuracy-gsm8k", "quality", "GSM8K through lm-evaluation-harness, where it is installed", _run, ("shifted-logits",)
)
