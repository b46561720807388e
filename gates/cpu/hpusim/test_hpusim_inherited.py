# SPDX-License-Identifier: Apache-2.0
"""What the caller's shell may not decide, and that nothing outlives a run however it is interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hpusim_ops import ROOT

from gates.hpusim import demo, install, testing
from gates.hpusim.inherited import inherited, left_out

HOSTILE = {
    "VLLM_API_KEY": "x", "VLLM_CONTIGUOUS_PA": "true", "VLLM_GAUDI_FRONTIER_EXACT_WINDOW": "1",
    "PT_HPU_LAZY_MODE": "1", "RANK": "3", "MASTER_PORT": "junk",
    "GLOO_SOCKET_IFNAME": "nosuch0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}  # fmt: skip
HARMLESS = {"PATH": "/bin", "VLLM_LOGGING_LEVEL": "DEBUG", "HPUSIM_HW": "gaudi3"}


def test_engine_settings_of_the_shell_are_left_out_and_named():
    assert left_out({**HOSTILE, **HARMLESS}) == sorted(HOSTILE)
    kept = inherited({**HOSTILE, **HARMLESS})
    assert {name: kept[name] for name in HARMLESS} == HARMLESS
    assert not set(HOSTILE) & set(kept)


def test_a_run_still_names_what_it_needs(monkeypatch):
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "1")
    assert testing.environment("eager")["PT_HPU_LAZY_MODE"] == "0"
    assert testing.environment("eager", VLLM_CONTIGUOUS_PA="true")["VLLM_CONTIGUOUS_PA"] == "true"


def test_loopback_is_never_asked_of_a_proxy():
    assert inherited({"NO_PROXY": "corp"})["NO_PROXY"] == "corp,127.0.0.1,localhost"
    assert inherited({})["no_proxy"] == "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HPUSIM_HARDWARE", "gaudi3", "HPUSIM_HARDWARE is not a setting"),
        ("HPUSIM_MEM_GIB", "lots", "HPUSIM_MEM_GIB='lots'"),
        ("HPUSIM_FAULT_RUN_AHEAD", "yes", "HPUSIM_FAULT_RUN_AHEAD='yes'"),
        ("HPUSIM_OFF", "1", "HPUSIM_OFF=1 leaves the emulation out"),
    ],
)
def test_the_demo_names_a_wrong_setting_before_it_begins(name, value, said, tmp_path, monkeypatch, capsys):
    from gates.hpusim.settings import settings

    monkeypatch.setenv(name, value)
    settings.cache_clear()
    try:
        assert demo.main(["--folder", str(tmp_path), "--port", "0"]) == 2
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_demo_names_a_package_that_does_not_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(install, "REQUIRED", (("torch", "9.9", "why"), ("no-such-thing", None, "because")))
    assert demo.main(["--folder", str(tmp_path), "--port", "0"]) == 3
    said = capsys.readouterr().err
    assert "torch is 2." in said
    assert "expected 9.9" in said
    assert "no-such-thing is not installed" in said


def test_a_wrong_setting_is_said_without_a_traceback(tmp_path):
    """In a process of its own: torch, which would switch the emulation on, must not be loaded before the check."""
    command = [sys.executable, "-m", "gates.hpusim.demo", "--folder", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "HPUSIM_HW": "gaudi9"}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "demo: HPUSIM_HW='gaudi9': expected one of gaudi2, gaudi3" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_refuses_a_port_that_is_none_and_a_folder_it_cannot_make(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        demo.main(["--port", "70000"])
    assert ended.value.code == 2
    (tmp_path / "file").touch()
    assert demo.main(["--folder", str(tmp_path / "file"), "--port", "0"]) == 3
    said = capsys.readouterr().err
    assert "'70000'" in said
    assert "--folder" in said


def gone(pid: int, patience: float = 30) -> bool:
    """Whether the process ends within `patience` seconds; one that init has not collected yet has ended."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_second_interrupt_leaves_no_process_behind(monkeypatch):
    """The first asks the server to stop, the second ends the wait for it."""
    script = (
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    child = int(process.stdout.readline())
    wait = process.wait

    def interrupted(timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        testing._end(process)
    assert process.poll() is not None
    assert gone(child)


def test_a_killed_run_takes_its_engine_along(tmp_path):
    """SIGKILL runs no `finally`: the kernel has to tell the engine."""
    script = (
        "import os, sys, time\nfrom gates.hpusim import testing\nlog = open(sys.argv[1], 'w')\n"
        "print(testing._start(['sleep', '600'], log, dict(os.environ)).pid, flush=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    engine = int(runner.stdout.readline())
    assert not gone(engine, patience=0.2)
    runner.kill()
    runner.wait()
    assert gone(engine)
