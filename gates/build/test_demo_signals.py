# SPDX-License-Identifier: Apache-2.0
"""Whoever ends `python -m scripts demo` means the server as well."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A demo that says it is up, and writes how it was ended.
FAKE = """
import pathlib, signal, sys, time
def ended(number, _):
    pathlib.Path("ended").write_text(signal.Signals(number).name)
    sys.exit(130)
signal.signal(signal.SIGTERM, ended)
print("up", flush=True)
time.sleep(60)
"""
DRIVER = """
import pathlib, sys
from types import SimpleNamespace
from scripts import demo
demo.wheels = SimpleNamespace(build=lambda project: None)
demo.env_verb = SimpleNamespace(ensure_serve=lambda project: SimpleNamespace(interpreter=sys.executable))
sys.exit(demo.run(SimpleNamespace(root=pathlib.Path(sys.argv[1])), SimpleNamespace(serve=True, port=None)))
"""


def test_a_terminated_tool_stops_the_demo_and_keeps_its_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "gates" / "hpusim"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "demo.py").write_text(FAKE)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert (tmp_path / "ended").read_text() == "SIGTERM"
