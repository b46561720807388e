# SPDX-License-Identifier: Apache-2.0
"""The serving environment holds the wheels of the current lock and the current emulation, or says that it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import env as env_verb
from scripts import environment, wheels
from scripts.environment import Environment
from scripts.errors import ToolError
from scripts.paths import Project
from scripts.tiny_wheel import tiny_wheel


class World:
    """A project with a wheel in dist/, an installer of an emulation, and an environment without pip of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = Project(folder, folder / "cache", {})
        self.env = Environment("serve", "serve", "none", "a test")
        monkeypatch.setattr(environment, "ROOT", folder)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.env.path)], check=True)
        self.installs: list[str] = []
        self.fail = ""
        monkeypatch.setattr(environment, "ensure", lambda name, python=None: self.env)
        monkeypatch.setattr(wheels, "build", lambda project, python=None: wheels.Built(self.wheels, fresh=False))
        monkeypatch.setattr(wheels, "in_dist", lambda project: self.wheels)
        monkeypatch.setattr(env_verb, "_call", self._call)
        self.wheels: dict[str, Path] = {}
        self.release("1.0")
        emulation = folder / "gates/hpusim"
        emulation.mkdir(parents=True)
        (emulation / "install.py").write_text("x = 1\n")

    def release(self, version: str) -> None:
        dist = self.project.root / "dist"
        dist.mkdir(exist_ok=True)
        self.wheels = {"vllm": tiny_wheel(dist, "vllm", version)}

    def _call(self, env: Environment, command: list[str], what: str, cwd: Path | None = None) -> None:
        self.installs.append(what)
        if what == self.fail:
            raise ToolError(f"{what} ended with 1", where=str(env.path), action="again")
        if what == "pip":
            pip = [sys.executable, "-m", "pip", "--python", command[0], *command[3:]]
            subprocess.run(pip, check=True)

    def version(self) -> str:
        return environment.installed(self.env.path)["vllm"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_both_layers_are_installed_once(world: World) -> None:
    env_verb.ensure_serve(world.project)
    assert world.version() == "1.0"
    assert world.installs == ["pip", env_verb.INSTALLER]
    env_verb.ensure_serve(world.project)
    assert len(world.installs) == 2
    env_verb.check_layers(world.project, world.env)


def test_a_new_lock_replaces_the_wheels(world: World) -> None:
    env_verb.ensure_serve(world.project)
    world.release("2.0")
    with pytest.raises(ToolError, match="the wheels of environment `serve` are not the current ones"):
        env_verb.check_layers(world.project, world.env)
    env_verb.ensure_serve(world.project)
    assert world.version() == "2.0"
    env_verb.check_layers(world.project, world.env)


def test_the_same_version_with_other_bytes_is_replaced_too(world: World) -> None:
    env_verb.ensure_serve(world.project)
    wheel = tiny_wheel(world.project.root / "dist", "vllm", "1.0", files={"vllm/__init__.py": "new = 1\n"})
    assert wheel == world.wheels["vllm"]
    env_verb.ensure_serve(world.project)
    installed = next(world.env.path.glob("lib/*/site-packages/vllm/__init__.py"))
    assert installed.read_text() == "new = 1\n"


def test_a_changed_emulation_is_installed_again(world: World) -> None:
    env_verb.ensure_serve(world.project)
    (world.project.root / "gates/hpusim/device.py").write_text("y = 1\n")
    with pytest.raises(ToolError, match="the emulation of environment"):
        env_verb.check_layers(world.project, world.env)
    env_verb.ensure_serve(world.project)
    assert world.installs == ["pip", env_verb.INSTALLER, env_verb.INSTALLER]


@pytest.mark.parametrize("step", ["pip", env_verb.INSTALLER])
def test_a_layer_that_failed_is_tried_again(world: World, step: str) -> None:
    world.fail = step
    with pytest.raises(ToolError, match="ended with 1"):
        env_verb.ensure_serve(world.project)
    world.fail = ""
    env_verb.ensure_serve(world.project)
    env_verb.check_layers(world.project, world.env)
    assert world.installs.count(step) == 2


def test_no_wheels_in_dist_is_said(world: World) -> None:
    world.wheels = {}
    with pytest.raises(ToolError, match="the wheels of environment") as caught:
        env_verb.check_layers(world.project, world.env)
    assert caught.value.action == "run `make env`"


def test_control_a_stamp_that_names_nothing_is_no_proof(world: World) -> None:
    env_verb.ensure_serve(world.project)
    stamp = world.env.path / "layer-wheels.stamp"
    stamp.write_text(json.dumps({"digest": ""}))
    with pytest.raises(ToolError):
        env_verb.check_layers(world.project, world.env)
    stamp.write_text("{")
    with pytest.raises(ToolError):
        env_verb.check_layers(world.project, world.env)
