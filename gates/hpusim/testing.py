# SPDX-License-Identifier: Apache-2.0
"""Start an engine or the API server on the emulated Gaudi from a test, in a process of its own.

run = run_engine(checkpoint, [{"prompts": [[5, 6, 7]], "sampling": {"temperature": 0, "max_tokens": 8}}])
run.tokens(0)                      # token ids of batch 0, one list per prompt
with serve(checkpoint) as server:  # server.client is an openai.OpenAI, server.url the base URL
    ...
server.meters                      # one JSON summary per process, after the server has stopped
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gates.hpusim.inherited import inherited

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal a process gets when its parent ends
# Modes of the plug-in: environment and engine arguments.
MODES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "eager": ({"PT_HPU_LAZY_MODE": "0"}, {"enforce_eager": True}),
    "lazy": ({"PT_HPU_LAZY_MODE": "1"}, {"enforce_eager": False}),
    "lazy_eager": ({"PT_HPU_LAZY_MODE": "1"}, {"enforce_eager": True}),
    "compile": ({"PT_HPU_LAZY_MODE": "0"}, {"enforce_eager": False}),
}
# 0.05 of the 4 GiB fake device: about 200 MB of real memory for the KV cache.
ENGINE: dict[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 1024,
    "gpu_memory_utilization": 0.05,
    "seed": 0,
}


def environment(mode: str = "eager", in_process: bool = True, **extra: str) -> dict[str, str]:
    """Environment of an engine process: offline, quiet, one thread a process, the caller's engine settings left out."""
    values, _ = MODES[mode]
    return {
        **inherited(),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
        "PYTHONUNBUFFERED": "1",
        **values,
        **extra,
    }


def read_meters(folder: Path) -> list[dict[str, Any]]:
    """The meter summaries that the processes of a run left behind, engine ranks first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("meters-*.json"))]
    return sorted(found, key=lambda summary: (summary.get("rank", 0), summary.get("pid", 0)))


@dataclass
class Run:
    """What an offline run left: outputs, log, meters."""

    answer: dict[str, Any]
    log: str
    meters: list[dict[str, Any]] = field(default_factory=list)

    def outputs(self, batch: int) -> list[dict[str, Any]]:
        return self.answer["batches"][batch]["outputs"]

    def tokens(self, batch: int) -> list[list[int]]:
        """Generated token ids of the first choice of each prompt of a batch."""
        return [output["choices"][0]["token_ids"] for output in self.outputs(batch)]


def run_engine(
    model: Path,
    batches: list[dict[str, Any]],
    *,
    mode: str = "eager",
    in_process: bool = True,
    timeout: float = 600,
    env: dict[str, str] | None = None,
    call: str | None = None,
    prepare: str | None = None,
    **engine: Any,
) -> Run:
    """Run `LLM(model, **engine)` over `batches` in a fresh process.

    Args:
        batches: each `{"prompts": [text or token ids], "sampling": SamplingParams fields or one dict per prompt}`.
        prepare: `module:function` called without arguments before the engine is built (in this process only).
        call: `module:function`, called with the LLM after the batches; its JSON-able result is `answer["call"]`.

    Raises:
        AssertionError: the process failed or timed out; the message ends with its log.
    """
    arguments = {"model": str(model), **ENGINE, **MODES[mode][1], **engine}
    with tempfile.TemporaryDirectory(prefix="hpusim-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(
            json.dumps({"engine": arguments, "batches": batches, "call": call, "prepare": prepare})
        )
        command = [
            sys.executable,
            "-m",
            "gates.hpusim.engine_driver",
            str(folder / "job.json"),
            str(folder / "answer.json"),
        ]
        values = environment(mode, in_process, **{"HPUSIM_METERS": str(folder / "meters-{pid}.json"), **(env or {})})
        with open(folder / "log", "w") as log:
            process = _start(command, log, values)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        text = (folder / "log").read_text(errors="replace")
        problem = f"timed out after {timeout:g} s" if code is None else f"exit code {code}"
        assert code == 0, f"engine run: {problem}\n{text[-6000:]}"
        return Run(json.loads((folder / "answer.json").read_text()), text, read_meters(folder))


def _start(command: list[str], log: IO[str], values: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own, so that Ctrl-C reaches this one first, and ends when this one does."""
    libc = ctypes.CDLL(None)

    def follow_the_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, env=values, start_new_session=True, preexec_fn=follow_the_parent
    )


def _end(process: subprocess.Popen[bytes], patience: float = 20) -> int | None:
    """Stop the process group that `process` leads and return the exit code, None when it had to be killed."""
    killed = False
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(patience)
    except subprocess.TimeoutExpired:
        killed = True
    finally:  # also when a second Ctrl-C ends the wait
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # children that outlived it
        process.wait()
    return None if killed else process.returncode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """A running API server. `exit_code` and `meters` are set once it has stopped."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path
    model: str
    log_path: Path
    exit_code: int | None = None
    meters: list[dict[str, Any]] = field(default_factory=list)

    @property
    def client(self) -> Any:
        import httpx
        import openai

        direct = httpx.Client(trust_env=False, timeout=300)  # the server is on this machine, whatever HTTP_PROXY says
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=300, max_retries=0, http_client=direct)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def get(self, path: str, timeout: float = 10) -> str:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self.url + path, timeout=timeout) as answer:
            return answer.read().decode()

    def stop(self, patience: float = 60) -> int | None:
        """Interrupt, wait, return the exit code; None when it had to be killed."""
        self.exit_code = _end(self.process, patience)
        self.meters = read_meters(self.folder)
        return self.exit_code


def wait_until_ready(server: Server, timeout: float) -> None:
    """Wait for /health; AssertionError with the end of the log when the server dies or does not come up in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise AssertionError(f"server ended with code {server.process.returncode}\n{server.log()[-6000:]}")
        try:
            server.get("/health", timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise AssertionError(f"server not ready after {timeout:g} s\n{server.log()[-6000:]}")


@contextmanager
def serve(
    model: Path,
    *arguments: str,
    mode: str = "eager",
    timeout: float = 300,
    env: dict[str, str] | None = None,
    port: int | None = None,
    log: Path | None = None,
    **engine: Any,
) -> Iterator[Server]:
    """Run the OpenAI API server; `arguments`: extra options; `engine`: values that replace those of `ENGINE`.

    `port`: a free one unless given. `log`: where to keep the server's output; else it goes with the run.
    """
    merged = {**ENGINE, **MODES[mode][1], **engine}
    options = ["--model", str(model), "--host", "127.0.0.1", "--served-model-name", "tiny"]
    for name, value in merged.items():
        flag = "--" + name.replace("_", "-")
        # Left out, a switch keeps vLLM's default, which for some (prefix caching) is on.
        switch = {True: [flag], False: [flag.replace("--", "--no-", 1)], None: []}
        options += switch[value] if value is None or isinstance(value, bool) else [flag, str(value)]
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="hpusim-") as name:
        folder = Path(name)
        log_path = log or folder / "log"
        values = environment(mode, False, **{"HPUSIM_METERS": str(folder / "meters-{pid}.json"), **(env or {})})
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            *options,
            "--port",
            str(port),
            *arguments,
        ]
        with open(log_path, "w") as output:
            process = _start(command, output, values)
        server = Server(f"http://127.0.0.1:{port}", process, folder, "tiny", log_path)
        ready = False
        try:
            wait_until_ready(server, timeout)
            ready = True
            yield server
        finally:
            if server.exit_code is None:
                # While it starts, vLLM's server does not heed the interrupt, and it has nothing to finish yet.
                server.stop() if ready else server.stop(patience=3)
