# SPDX-License-Identifier: Apache-2.0
"""P18: an installation that is not the one that was built is named; `make image-check` does this in a real image."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.tiny_wheel import tiny_wheel

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "image_check.py"
VERSION = "0.26.0+frontier.abcdef12"
RECORD = {"name": "vllm-gaudi-frontier", "version": VERSION, "lock_hash": "abcdef12" * 8}


class Image:
    """A folder that stands for an image: interpreter path, the wheels, the files of the Dockerfile."""

    def __init__(self, folder: Path, script: Path = SCRIPT) -> None:
        self.folder, self.script = folder, script
        self.site = folder / "site"
        self.base = folder / "base"
        self.index = folder / "index"
        self.index.mkdir(parents=True)
        self.record = folder / "distribution.json"
        self.record.write_text(json.dumps(RECORD))
        self.requirements = folder / "image.txt"
        self.requirements.write_text("numpyish==2.3  # why\n")
        self.constraints = folder / "constraints.txt"
        tiny_wheel(self.index, "torch", "2.11.0")
        tiny_wheel(self.index, "numpyish", "2.3")
        for name in ("vllm", "vllm_gaudi"):
            files = {f"{name}/__init__.py": "", f"{name}/distribution.json": json.dumps(RECORD)}
            tiny_wheel(self.index, name, VERSION, files=files)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an isolated interpreter that sees the image's folders only."""
        program = (
            "import sys, runpy; sys.path[:0] = sys.argv[1:3]; sys.argv = sys.argv[3:]; "
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        command = [sys.executable, "-I", "-S", "-c", program, str(self.site), str(self.base), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def pip(self, target: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--isolated", "install", "-qq", "--no-index", "--find-links"]
        command += [str(self.index), "--target", str(target), "--upgrade", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def write_constraints(self) -> None:
        options = ["--record", str(self.record), "--requirements", str(self.requirements), "--keep", "torch"]
        done = self.python(str(self.script), "constraints", *options)
        assert done.returncode == 0, done.stderr
        self.constraints.write_text(done.stdout)

    def build(self) -> None:
        """The Dockerfile's steps."""
        assert self.pip(self.base, "torch==2.11.0").returncode == 0
        self.write_constraints()
        wheels = map(str, sorted(self.index.glob("vllm*.whl")))
        assert self.pip(self.site, "--no-deps", "numpyish==2.3", *wheels).returncode == 0

    def verify(self, imports: str = "vllm vllm_gaudi") -> subprocess.CompletedProcess[str]:
        options = ["--record", str(self.record), "--constraints", str(self.constraints), "--import", imports]
        return self.python(str(self.script), "verify", *options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "whole"
    Image(folder).build()
    return folder


@pytest.fixture
def image(built: Path, tmp_path: Path) -> Image:
    """A fresh copy of a built image."""
    shutil.copytree(built, tmp_path / "copy")
    image = Image.__new__(Image)
    image.folder, image.script = tmp_path / "copy", SCRIPT
    for name, value in {"site": "site", "base": "base", "index": "index", "record": "distribution.json"}.items():
        setattr(image, name, image.folder / value)
    image.requirements, image.constraints = image.folder / "image.txt", image.folder / "constraints.txt"
    return image


def test_what_was_built_passes(image: Image) -> None:
    done = image.verify()
    assert (done.returncode, done.stdout) == (0, f"vllm-gaudi-frontier {VERSION}: installed as built\n")


def test_constraints_name_all_that_must_stay(image: Image) -> None:
    lines = image.constraints.read_text().splitlines()
    assert lines == ["numpyish==2.3", "torch==2.11.0", f"vllm=={VERSION}", f"vllm-gaudi=={VERSION}"]


def replace(image: Image, name: str, version: str) -> None:
    for old in image.site.glob(f"{name}*"):
        shutil.rmtree(old)
    tiny_wheel(image.index, name, version)
    assert image.pip(image.site, "--no-deps", f"{name}=={version}").returncode == 0


def dependency_replaced_vllm(image: Image) -> None:
    replace(image, "vllm", "0.25.0")


def another_torch_shadows_the_images(image: Image) -> None:
    tiny_wheel(image.index, "torch", "2.13.0")
    assert image.pip(image.site, "--no-deps", "torch==2.13.0").returncode == 0


def requirement_moved(image: Image) -> None:
    replace(image, "numpyish", "2.4")


def requirement_gone(image: Image) -> None:
    shutil.rmtree(next(image.site.glob("numpyish-*.dist-info")))


def file_edited(image: Image) -> None:
    (image.site / "vllm_gaudi/__init__.py").write_text("edited = True\n")


def file_gone(image: Image) -> None:
    (image.site / "vllm_gaudi/__init__.py").unlink()


def upstreams_own_wheel(image: Image) -> None:
    """The right version, but not ours: no record inside."""
    (image.site / "vllm/distribution.json").unlink()


def wheel_of_another_lock(image: Image) -> None:
    path = image.site / "vllm_gaudi/distribution.json"
    path.write_text(path.read_text().replace("abcdef12", "12345678"))


def does_not_import(image: Image) -> None:
    """Installed as built, RECORD and all, and still broken."""
    path = image.site / "vllm" / "__init__.py"
    path.write_text("raise ImportError('libSynapse.so')\n")
    record = next(image.site.glob("vllm-*.dist-info/RECORD"))
    rows = [row for row in record.read_text().splitlines(keepends=True) if not row.startswith("vllm/__init__.py")]
    record.write_text("".join(rows))


FAULTS: dict[Callable[[Image], None], str] = {
    dependency_replaced_vllm: f"FAIL vllm: {VERSION} wanted, 0.25.0 installed",
    another_torch_shadows_the_images: "FAIL torch: 2.11.0 wanted, 2.13.0 installed",
    requirement_moved: "FAIL numpyish: 2.3 wanted, 2.4 installed",
    requirement_gone: "FAIL numpyish: 2.3 wanted, not installed",
    file_edited: "FAIL vllm-gaudi: vllm_gaudi/__init__.py differs from what the wheel installed",
    file_gone: "FAIL vllm-gaudi: vllm_gaudi/__init__.py is missing",
    upstreams_own_wheel: "FAIL vllm: no readable distribution.json",
    wheel_of_another_lock: "FAIL vllm-gaudi: lock abcdef12abcd wanted, 123456781234 installed",
    does_not_import: "FAIL import vllm: ImportError: libSynapse.so",
}


def check_found(image: Image, fault: Callable[[Image], None]) -> None:
    """`fault` is named, on a line of its own, and the exit code says so."""
    fault(image)
    done = image.verify()
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(line.startswith(FAULTS[fault]) for line in done.stdout.splitlines()), done.stdout


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_is_named(image: Image, fault: Callable[[Image], None]) -> None:
    check_found(image, fault)


WEAKENED = {
    # fault -> the line of the check that is taken out
    dependency_replaced_vllm: "elif have[name] != version:",
    file_edited: 'if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:',
    wheel_of_another_lock: 'if found != record["lock_hash"]:',
}


@pytest.mark.parametrize("fault", WEAKENED, ids=lambda fault: fault.__name__)
def test_control_a_weaker_check_is_caught(image: Image, tmp_path: Path, fault: Callable[[Image], None]) -> None:
    text = SCRIPT.read_text()
    line = WEAKENED[fault]
    assert text.count(line) == 1
    image.script = tmp_path / "image_check.py"
    image.script.write_text(text.replace(line, line.split()[0] + " False:"))
    with pytest.raises(AssertionError):
        check_found(image, fault)


def test_constraints_refuse_a_dependency_that_wants_another_vllm(image: Image) -> None:
    """As users met it: an add-on whose requirements replace the pinned wheel. The control: without the file."""
    tiny_wheel(image.index, "vllm", "0.25.0")
    tiny_wheel(image.index, "addon", "1.0", requires=("vllm<0.26",))
    refused = image.pip(image.site, "--constraint", str(image.constraints), "addon")
    assert refused.returncode != 0
    assert image.verify().returncode == 0, "and nothing was changed"
    assert image.pip(image.site, "addon").returncode == 0
    assert image.verify().returncode == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "--record", "nowhere.json", "--constraints", "nowhere.txt"], "nowhere.json"),
        (["constraints", "--record", "RECORD", "--requirements", "LOOSE"], "line 1 is not `name==version`: a>=1"),
        (["constraints", "--record", "RECORD", "--requirements", "EMPTY", "--keep", "habana-torch-plugin"], "no Gaudi"),
    ],
)
def test_what_cannot_be_judged_is_an_error_not_a_pass(image: Image, words: list[str], says: str) -> None:
    (image.folder / "loose.txt").write_text("a>=1\n")
    (image.folder / "empty.txt").write_text("")
    paths = {"RECORD": image.record, "LOOSE": image.folder / "loose.txt", "EMPTY": image.folder / "empty.txt"}
    done = image.python(str(image.script), *[str(paths.get(word, word)) for word in words])
    assert done.returncode == 2
    assert says.replace("no Gaudi", "not a Gaudi PyTorch image") in done.stderr
