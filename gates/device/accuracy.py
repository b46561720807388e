# SPDX-License-Identifier: Apache-2.0
"""Task accuracy through lm-evaluation-harness against the server; its standard error is kept.

The harness loads its data sets from a hub: where it is not installed or the hub is out of reach the gate is SKIPped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gates.core.errors import GateError
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult, Measurement

# What the harness's data loader says where its hub is out of reach.
NO_HUB = ("huggingface.co", "Couldn't reach", "HF_HUB_OFFLINE", "LocalEntryNotFoundError", "OfflineModeIsEnabled")
GRACE_S = 5.0  # between the harness's end and the gate's
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


def _harness(ctx: Context, folder: Path) -> tuple[int, str]:
    """Run the harness, which is gone when the gate is: exit code, and what it wrote to stderr.

    Raises:
        GateError: it outlived the gate's deadline.
    """
    # The harness knows one name for a key; a server without one takes any.
    environment = {**os.environ, "OPENAI_API_KEY": ctx.client.api_key or "none"}
    log = folder / "stderr.txt"
    with log.open("wb") as errors:
        process = subprocess.Popen(command(ctx, folder), stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            process.wait(max(1.0, ctx.profile.gate_deadline_s - GRACE_S))
        except subprocess.TimeoutExpired as error:
            raise GateError("the harness did not end in time", action="raise the profile's gate deadline") from error
        finally:
            process.kill()
            process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _run(ctx: Context) -> GateResult:
    if importlib.util.find_spec("lm_eval") is None:
        raise Skip("lm-evaluation-harness is not installed (pip install lm-eval)")
    if not ctx.wording.can("arithmetic"):
        raise Skip("needs a model that can do arithmetic")
    with tempfile.TemporaryDirectory() as folder:
        code, told = _harness(ctx, Path(folder))
        files = sorted(Path(folder).rglob("results*.json"))
        if code or not files:
            last = " ".join(told.strip().splitlines()[-2:]) or f"exit code {code}"
            if any(word in told for word in NO_HUB):
                raise Skip(f"the harness cannot reach its data sets: {last}")
            raise GateError(f"the harness did not finish: {last}", action="run it by hand, or see the server's log")
        score, error = parse(json.loads(files[-1].read_text()))
    measurement = Measurement(score, "share", score - 1.96 * error, score + 1.96 * error, LIMIT)
    return judge(ctx, "accuracy-gsm8k", measurement, details={"stderr": error, "task": TASK, "limit": LIMIT})


GATE = Gate(
    "accuracy-gsm8k", "quality", "GSM8K through lm-evaluation-harness, where it is installed", _run, ("early-stop",)
)
