# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness against the server under test: a program of its own, in an environment of its own.

It asks the server through the same OpenAI API and scores by its own rules; what it writes to its standard error is kept
beside the ledger. Its own tasks load their data sets from a hub: where that is out of reach the gate is SKIPped.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gates.core.errors import GateError
from gates.core.gate import Context, Skip
from gates.core.result import Measurement, plain
from scripts import environment

INSTALL = "python -m scripts env accuracy"
GRACE_S = 5.0  # between the harness's end and the gate's
# What its data loader says, as its last word, where a hub is out of reach.
NO_HUB = re.compile(r"huggingface\.co|on the Hub|Couldn't reach|OfflineMode|HF_HUB_OFFLINE|LocalEntryNotFound")
# What it says of a 200 that holds no answer; it goes on with an empty one, which would be scored as the model's.
NO_ANSWER = "Could not parse generations"
_PROGRESS = re.compile(r"^Requesting API: .*?(\d+/\d+) ")


@dataclass(frozen=True)
class Task:
    """What is asked of the harness.

    Attributes:
        name: as the harness knows it.
        metric: which of its figures, and after which filter: "exact_match,flexible-extract".
        limit: the first so many items.
        room: tokens for an answer, reasoning included.
        shots: worked examples before each question; None leaves it to the task.
        chat: ask for a chat turn (True) or for a plain completion (False).
        until: texts that end an answer. None by default, whatever the task says: a chat model ends its turn itself, and
            a text such as "Question:" would also end a thought that holds it.
        write: puts the task's own files into a folder, where the harness does not have it.
    """

    name: str
    metric: str
    limit: int
    room: int
    shots: int | None = None
    chat: bool = True
    until: tuple[str, ...] = ()
    write: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Score:
    """A share of right answers with its standard error, of how many items, and by which task and harness."""

    value: float
    error: float
    samples: int
    task_version: str
    harness_version: str

    def measurement(self) -> Measurement:
        """The share with its 95 % interval."""
        low, high = self.value - 1.96 * self.error, self.value + 1.96 * self.error
        return Measurement(self.value, "share", max(0.0, low), min(1.0, high), self.samples)


def interpreter() -> str:
    """A Python that has the harness: that of environment `accuracy`, else this one.

    Raises:
        Skip: none has it.
    """
    env = environment.ENVIRONMENTS["accuracy"]
    why = environment.problem(env)
    if why is None:
        return str(env.interpreter)
    if importlib.util.find_spec("lm_eval") is not None:
        return sys.executable
    raise Skip(f"lm-evaluation-harness is not installed: environment `accuracy` is {why}; `{INSTALL}` builds it")


def command(ctx: Context, task: Task, python: str, folder: Path) -> list[str]:
    """The harness's command line for this server; results and the task's own files lie in `folder`."""
    model = {
        "model": ctx.client.model,
        "base_url": f"{ctx.client.root}/v1/{'chat/' if task.chat else ''}completions",
        "num_concurrent": ctx.profile.concurrency,
        "timeout": math.ceil(ctx.profile.deadline_s),
        "tokenizer_backend": "None",
        "tokenized_requests": False,
    }
    answer = {"max_gen_toks": task.room, "until": list(task.until)}
    arguments = {
        "--model": f"local-{'chat-' if task.chat else ''}completions",
        # Its values are Python literals: without quotes a model called `7` would be a number.
        "--model_args": ",".join(f"{key}={value!r}" for key, value in model.items()),
        "--gen_kwargs": ",".join(f"{key}={value!r}" for key, value in answer.items()),
        "--tasks": task.name,
        "--limit": str(task.limit),
        "--output_path": str(folder / "results"),
    }
    if task.shots is not None:
        arguments["--num_fewshot"] = str(task.shots)
    if task.write is not None:
        arguments["--include_path"] = str(folder / "tasks")
    words = [word for pair in arguments.items() for word in pair]
    return [python, "-m", "lm_eval", "run", *words, *(["--apply_chat_template"] if task.chat else [])]


def surroundings(ctx: Context, task: Task, folder: Path) -> dict[str, str]:
    """The harness's environment variables: the server's key, which no command line shows, and where data come from."""
    # The harness knows one name for a key; a server without one takes any, and must not get another service's.
    found = {**os.environ, "OPENAI_API_KEY": ctx.client.api_key or "none", "HF_HUB_DISABLE_TELEMETRY": "1"}
    found["PYTHONSAFEPATH"] = "1"  # a folder `datasets` where the user stands is not the library of that name
    if task.write is not None:
        found |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "HF_DATASETS_CACHE": str(folder / "hub/data")}
    return found


def keep(lines: Iterable[str], log: Path, secret: str, progress: Callable[[str], None]) -> list[str]:
    """Write what the harness says to `log`, without `secret` and progress bars; returns its last lines."""
    last: deque[str] = deque(maxlen=40)
    with log.open("w", encoding="utf-8") as file:
        for line in lines:
            counted = _PROGRESS.match(line)
            if counted:
                progress(f"{counted[1]} answers")
                continue
            said = plain(line.rstrip("\n"), secret)
            file.write(said + "\n")
            file.flush()
            if said.strip():
                last.append(said.strip())
    return list(last)


def parse(data: dict[str, Any], task: Task) -> Score:
    """The task's score in the harness's result file.

    Raises:
        GateError: the task, the metric or its standard error is missing.
    """
    try:
        block = data["results"][task.name]
        name, variant = task.metric.split(",")
        value, error = float(block[task.metric]), float(block[f"{name}_stderr,{variant}"])
        if not (math.isfinite(value) and math.isfinite(error)):
            raise ValueError(f"{value} with a standard error of {error}")
        samples = int(data["n-samples"][task.name]["effective"])
        return Score(value, error, samples, str(data["versions"][task.name]), str(data["lm_eval_version"]))
    except (KeyError, TypeError, ValueError) as error_:
        raise GateError(
            f"no {task.metric} of {task.name} in the harness's results ({error_!r})",
            action=f"is its version the pinned one? `{INSTALL}`",
        ) from error_


def _log(ctx: Context, gate: str) -> Path:
    """Where this run's standard error goes: no earlier one is written over."""
    folder = ctx.records / "stderr"
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GateError(
            f"cannot keep the harness's standard error ({error.strerror})", where=str(folder), action="see --ledger"
        ) from error
    return folder / f"{gate}-{stamp}.txt"


def _call(ctx: Context, task: Task, words: list[str], folder: Path, log: Path) -> tuple[int, list[str]]:
    """Run the harness, which is gone when this returns: exit code, and the last lines of its standard error.

    Raises:
        GateError: it outlived the gate's deadline.
    """
    said: list[str] = []
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=surroundings(ctx, task, folder),
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stderr is not None
    lines = process.stderr
    reader = threading.Thread(
        target=lambda: said.extend(keep(lines, log, ctx.client.api_key, ctx.progress)), daemon=True
    )
    reader.start()
    try:
        process.wait(max(0.0, ctx.profile.gate_deadline_s - GRACE_S))
    except subprocess.TimeoutExpired as error:
        raise GateError(
            "the harness did not end in time", where=str(log), action="raise the profile's gate deadline"
        ) from error
    finally:
        process.kill()
        process.wait()
        reader.join(GRACE_S)
    return process.returncode, said


def run(ctx: Context, gate: str, task: Task) -> tuple[Score, dict[str, Any]]:
    """A task's score on the server, and details for the record: the standard error, and where the harness's log lies.

    Raises:
        Skip: there is no harness, or no data set within its reach.
        GateError: it ended without a score.
    """
    python = interpreter()
    if ctx.client.auth is not None:
        raise Skip("the harness can send a key but no password: give --api-key instead of a password in the address")
    log = _log(ctx, gate)
    with tempfile.TemporaryDirectory(prefix="gate-accuracy-") as name:
        folder = Path(name)
        if task.write is not None:
            (folder / "tasks").mkdir()
            task.write(folder / "tasks")
        code, said = _call(ctx, task, command(ctx, task, python, folder), folder, log)
        files = sorted(folder.rglob("results*.json"))
        if code or not files:
            if said and NO_HUB.search(said[-1]) and task.write is None:
                raise Skip(f"the harness cannot reach its data sets: {said[-1]} (in {log})")
            last = " ".join(said[-2:]) or f"exit code {code}"
            raise GateError(
                f"the harness did not finish: {last}", where=str(log), action="see there, and the server's log"
            )
        score = parse(json.loads(files[-1].read_text(encoding="utf-8")), task)
    if empty := sum(NO_ANSWER in line for line in log.read_text(encoding="utf-8").splitlines()):
        raise GateError(f"{empty} replies were no chat answers", where=str(log), action="is this an OpenAI API?")
    details = {"task": task.name, "task_version": score.task_version, "harness": score.harness_version}
    return score, {**details, "metric": task.metric, "stderr": score.error, "stderr_log": str(log)}
