# SPDX-License-Identifier: Apache-2.0
"""`image --check`: build the Dockerfile for real where the stock Gaudi image cannot be had, and break the result.

The base is a small Debian with Python, the pinned torch and the metadata of Habana's plug-in. Every step of the
Dockerfile runs, with buildah, and pip sees a folder of wheels only. Then known faults are put into the image and its
own check has to find them: a check that passes them all proves nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts import environment, image
from scripts.console import data, note
from scripts.errors import Exit, ToolError
from scripts.paths import Project
from scripts.tiny_wheel import tiny_wheel

SUITE = "bookworm"  # its Python is 3.11, the version the serving list is pinned for
_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
_TORCH = ("torch", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy", "typing-extensions")
_TORCH_DISTS = "usr/lib/python3/dist-packages"
_VERIFY = "python /opt/frontier/image_check.py verify --record {record} --constraints /opt/frontier/constraints.txt"
_RECORD = "/opt/frontier/wheels/distribution.json"


@dataclass(frozen=True)
class Outcome:
    """What one command in the image came to."""

    code: int
    output: str


def check(project: Project) -> int:
    """Build, run the controls, print one line each. Returns 0 when the image is right and every fault was found."""
    for tool, package in (("buildah", "buildah"), ("debootstrap", "debootstrap")):
        if not shutil.which(tool):
            raise ToolError(
                f"{tool} is needed for the local image",
                where="PATH",
                action=f"install it, on Debian: apt-get install {package}",
            )
    folder = project.build / "image"
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder)
    base = _base(store, folder)
    wheelhouse = _wheelhouse(folder)
    note("image: building the Dockerfile over it")
    built = store.build(project, base, wheelhouse)
    failures = judge(store, built)
    store.call("rmi", built, what="removing the image")  # the base stays, for the next time
    return Exit.CHECK_FAILED if failures else Exit.OK


def judge(store: Store, built: str) -> int:
    """Run every control on image `built`; prints one line each and returns how many went wrong.

    One container serves all, as a copy of the image takes its time: the controls that only look come first, and each
    later fault is recognised by its own line among those of its predecessors.
    """
    failures = 0
    with store.container(built) as container:
        for name, control in CONTROLS.items():
            fault = control(container)
            failures += fault is not None
            data(f"{'FAIL' if fault else 'PASS'} image: {name}" + (f": {fault}" if fault else ""))
    return failures


class Store:
    """buildah with a storage of its own below build/, so that nothing of the user's images is touched."""

    def __init__(self, folder: Path) -> None:
        self.words = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.words += ["--storage-driver", "vfs"]

    def call(self, *words: str, what: str, stdin: bytes | None = None) -> str:
        """Run buildah and return stdout. Raises ToolError with the end of its messages."""
        done = subprocess.run([*self.words, *words], input=stdin, capture_output=True, check=False)
        if done.returncode:
            tail = (done.stderr + done.stdout).decode("utf-8", "replace").strip()[-2500:]
            raise ToolError(f"{what} failed: {tail}", where="buildah " + words[0], action="see its message above")
        return done.stdout.decode()

    def has(self, tag: str) -> bool:
        """Whether image `tag` is stored."""
        command = [*self.words, "inspect", "--type", "image", tag]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def build(self, project: Project, base: str, wheelhouse: Path) -> str:
        """Build the Dockerfile over `base`; pip sees `wheelhouse` alone. Returns the tag."""
        tag = "localhost/frontier:check"
        arguments = {"BASE_IMAGE": base, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheelhouse"}
        words = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
        words += image.build_arguments(project)
        words += ["--volume", f"{wheelhouse}:/wheelhouse:ro", "--isolation", "chroot"]
        options = ["--format", "docker", "--layers=false", "--pull-never", "--tag", tag]
        said = self.call("build", *options, *words, str(project.root), what="building the Dockerfile")
        note("\n".join(line for line in said.splitlines() if "STEP" in line))
        return tag

    def container(self, tag: str) -> Container:
        """A throw-away container of image `tag`."""
        return Container(self, tag)


class Container:
    """A working container; removed on leaving the `with` block."""

    def __init__(self, store: Store, tag: str) -> None:
        self.store, self.tag, self.name = store, tag, ""

    def __enter__(self) -> Container:
        self.name = self.store.call("from", "--pull-never", self.tag, what="starting a container").strip()
        return self

    def __exit__(self, *_: object) -> None:
        self.store.call("rm", self.name, what="removing a container")

    def run(self, command: str, *, user: str = "") -> Outcome:
        """Run a shell command; as the image's user unless `user` is given."""
        words = [*self.store.words, "run", "--isolation", "chroot"]
        words += ["--user", user] if user else []
        done = subprocess.run(
            [*words, self.name, "--", "bash", "-c", command], capture_output=True, text=True, check=False
        )
        return Outcome(done.returncode, done.stdout + done.stderr)

    def put(self, source: Path, target: str) -> None:
        """Copy a file or folder into the container."""
        self.store.call("copy", self.name, str(source), target, what="copying into a container")

    def configuration(self) -> dict[str, object]:
        """The image's configuration: User, Labels, Healthcheck and so on."""
        told = json.loads(self.store.call("inspect", "--type", "image", self.tag, what="inspecting the image"))
        found: dict[str, object] = told["Docker"]["config"]
        return found


def _base(store: Store, folder: Path) -> str:
    """The local base image, built once for each combination of suite and torch."""
    wanted = environment.pins(environment.ROOT / "requirements/serve.txt")
    lines = [f"{name}=={wanted[name]}" for name in _TORCH]
    tag = "localhost/frontier-base:" + hashlib.sha256("\n".join([SUITE, _PACKAGES, *lines]).encode()).hexdigest()[:12]
    if store.has(tag):
        return tag
    note(f"image: making a local base ({SUITE}, torch {wanted['torch']}); a few minutes, once")
    root = folder / "base"
    shutil.rmtree(root, ignore_errors=True)
    _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(root)], "debootstrap")
    python = environment.find_python(environment.ENVIRONMENTS["serve"])
    _run([python, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(root / _TORCH_DISTS), *lines], "pip")
    plugin = root / _TORCH_DISTS / "habana_torch_plugin-1.24.1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: habana-torch-plugin\nVersion: 1.24.1\n")
    container = store.call("from", "scratch", what="making the base").strip()
    store.call("add", "--quiet", container, str(root), "/", what="making the base")
    store.call("commit", "--quiet", "--rm", container, tag, what="making the base")
    shutil.rmtree(root)
    return tag


def _wheelhouse(folder: Path) -> Path:
    """Every wheel of the image's list, fetched by the caller's pip, so that the build itself needs no index."""
    target = folder / "wheelhouse"
    python = environment.find_python(environment.ENVIRONMENTS["serve"])
    wanted = str(environment.ROOT / "requirements/image.txt")
    download = [python, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "--dest", str(target)]
    wanted_pins = environment.pins(environment.ROOT / "requirements/image.txt")
    have = {tuple(path.name.split("-")[:2]) for path in target.glob("*.whl")} if target.is_dir() else set()
    if {(environment.normalise(name), version) for name, version in have} >= set(wanted_pins.items()):
        return target
    note("image: fetching the image's wheels")
    _run([*download, "--requirement", wanted], "pip download")
    return target


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise ToolError(f"{what} ended with {done.returncode}", where=command[0], action="see its message above")


def _as_built(container: Container) -> str | None:
    found = container.run(_VERIFY.format(record=_RECORD) + " --import 'vllm vllm_gaudi'")
    return None if found.code == 0 else found.output.strip()[-400:]


def _keeps_torch(container: Container) -> str | None:
    found = container.run("python -c 'import torch; print(torch.__file__)'")
    return None if f"/{_TORCH_DISTS}/torch/" in found.output else f"torch comes from {found.output.strip()}"


def _configured(container: Container) -> str | None:
    told = container.configuration()
    labels = told.get("Labels") or {}
    missing = [key for key in ("Healthcheck", "User", "Entrypoint") if not told.get(key)]
    if told.get("User") in ("", "root", "0"):
        missing.append("a user other than root")
    if not isinstance(labels, dict) or not labels.get("frontier.lock-hash"):
        missing.append("label frontier.lock-hash")
    return f"missing: {', '.join(missing)}" if missing else None


def _replaced_wheel(container: Container) -> str | None:
    """P18: a dependency that wants another vllm is refused; forced in, the check names it."""
    bad = Path(container.store.words[2]).parent / "bad"
    shutil.rmtree(bad, ignore_errors=True)
    bad.mkdir()
    tiny_wheel(bad, "vllm", "0.25.0")
    tiny_wheel(bad, "addon", "1.0", requires=("vllm<0.26",))
    container.put(bad, "/bad")
    pip = "python3 -m pip --python /opt/frontier/venv/bin/python install --no-index --find-links /bad addon"
    if container.run(pip, user="0").code == 0:
        return "the constraints let an add-on replace vllm"
    forced = container.run(f"env -u PIP_CONSTRAINT {pip}", user="0")
    if forced.code:
        return f"the control could not be set up: {forced.output.strip()[-300:]}"
    found = container.run(_VERIFY.format(record=_RECORD))
    named = found.code == 1 and "FAIL vllm: " in found.output and "0.25.0 installed" in found.output
    return None if named else f"a replaced vllm went unnoticed: {found.output.strip()[-300:]}"


def _edited_file(container: Container) -> str | None:
    edit = "echo '# edited' >> $(python -c 'import vllm_gaudi; print(vllm_gaudi.__path__[0])')/envs.py"
    container.run(edit, user="0")
    found = container.run(_VERIFY.format(record=_RECORD))
    named = found.code == 1 and "vllm_gaudi/envs.py differs" in found.output
    return None if named else f"an edited file went unnoticed: {found.output.strip()[-300:]}"


def _other_lock(container: Container) -> str | None:
    container.run(f'sed \'s/"lock_hash": "...../"lock_hash": "00000/\' {_RECORD} > /tmp/other.json')
    found = container.run(_VERIFY.format(record="/tmp/other.json"))
    return None if found.code == 1 and "lock 00000" in found.output else "wheels of another lock went unnoticed"


CONTROLS: dict[str, Callable[[Container], str | None]] = {
    "installed as built, and imports": _as_built,
    "the base image's torch is kept": _keeps_torch,
    "user, health check, entry point, label": _configured,
    "control: a dependency replaces vllm": _replaced_wheel,
    "control: a file of a wheel is edited": _edited_file,
    "control: the wheels are of another lock": _other_lock,
}
