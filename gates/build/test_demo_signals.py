# SPDX-License-Identifier: Apache-2.0
"""Whoever ends `python -m scripts demo` means the server as well; a disk that is too small is named first."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import demo, environment
from scripts.errors import ToolError
from scripts.paths import Project

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


@pytest.mark.parametrize(
    ("missing", "free", "refused"),
    [
        ((), 10, None),
        (("serve",), 2999, "2999 MiB of disk are free, the environments serve need about 3000"),
        (("build", "serve"), 4499, "4499 MiB of disk are free, the environments build and serve need about 4500"),
        (("build", "serve"), 4500, None),
    ],
)
def test_a_disk_too_small_is_named_before_anything_is_built(
    missing: tuple[str, ...], free: int, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "problem", lambda env: "not built" if env.name in missing else None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free << 20))
    built: list[object] = []
    monkeypatch.setattr(demo.wheels, "build", built.append)
    project = Project(tmp_path, tmp_path, {})
    if refused is None:
        demo.check_room(project)
        return
    (tmp_path / "gates/hpusim").mkdir(parents=True)
    (tmp_path / "gates/hpusim/demo.py").touch()
    with pytest.raises(ToolError, match=refused):
        demo.run(project, SimpleNamespace(serve=False, port=None))
    assert not built
