# SPDX-License-Identifier: Apache-2.0
"""P17 on the real upstreams: the same two wheels from another folder, on another day, for another user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import pytest

from scripts import environment, git, lockfile, record, stack, wheel_build, wheels
from scripts.errors import Exit, ToolError
from scripts.paths import Project, open_project

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"vllm": "vllm", "vllm-gaudi": "vllm_gaudi"}


@dataclass(frozen=True)
class Pair:
    """A finished dist/ and the project it belongs to."""

    project: Project
    wheels: dict[str, Path]

    def read(self, upstream: str, name: str) -> bytes:
        """One member of a wheel; `*.dist-info` may be written as INFO."""
        with zipfile.ZipFile(self.wheels[upstream]) as archive:
            info = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
            return archive.read(name.replace("INFO", info))


@pytest.fixture(scope="module")
def here() -> Iterator[Pair]:
    """This checkout's own wheels, built where they are not current."""
    if why := environment.problem(environment.ENVIRONMENTS["build"]):
        pytest.skip(f"environment `build`: {why}; run `make env`")
    project = open_project(None, [])
    try:
        yield Pair(project, wheels.build(project).wheels)
    except ToolError as error:
        if error.code == Exit.UNREACHABLE:
            pytest.skip(f"{error.what} ({error.where})")
        raise


def copy_project(source: Project, target: Path) -> Project:
    """The lock, patches and overlay in another folder; file times are today's, not the checkout's."""
    target.mkdir()
    for name in ("patches", "overlay"):
        if (source.root / name).is_dir():
            shutil.copytree(source.root / name, target / name, copy_function=shutil.copyfile)
    shutil.copyfile(source.lock, target / "upstream.lock")
    return Project(target, source.cache, source.sources)


@pytest.fixture(scope="module")
def elsewhere(here: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same, built in a folder of another name and depth, with a closed umask, another time zone and locale."""
    target = tmp_path_factory.mktemp("other") / "a folder with spaces, deeper"
    project = copy_project(here.project, target)
    before = os.umask(0o077)
    try:
        variables = {**os.environ, "TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
        tool = [sys.executable, "-m", "scripts", "wheels", "--root", str(target)]
        for name, path in here.project.sources.items():
            tool += ["--source", f"{name}={path}"]
        done = subprocess.run(tool, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600, check=False)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    found = wheels.in_dist(project)
    assert sorted(found) == sorted(here.wheels), done.stderr
    return Pair(project, found)


def test_two_folders_give_the_same_bytes(here: Pair, elsewhere: Pair) -> None:
    for name, wheel in here.wheels.items():
        assert wheel.name == elsewhere.wheels[name].name
        assert wheel.read_bytes() == elsewhere.wheels[name].read_bytes(), f"{wheel.name} differs"
    bills = [next(pair.project.root.glob("dist/*.cdx.json")).read_bytes() for pair in (here, elsewhere)]
    assert bills[0] == bills[1]


def test_control_the_back_ends_own_wheel_differs(here: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the canonical form the same comparison fails: two builds of the smaller wheel, seconds apart."""
    monkeypatch.setattr(wheel_build, "repack", lambda wheel, out, **_: Path(shutil.copy(wheel, out)))
    lock = lockfile.load(here.project)
    stacks = {name: stack.load(here.project, name) for name in lock.upstreams}
    facts = record.build(lock, stacks)
    upstream = next(item for item in facts["upstreams"] if item["name"] == "vllm-gaudi")
    made = []
    for n, epoch in enumerate((1_600_000_000, 1_700_000_000)):
        out = tmp_path / str(n)
        out.mkdir()
        made.append(
            wheel_build.build(
                here.project.tree("vllm-gaudi"),
                upstream,
                stacks["vllm-gaudi"],
                facts,
                python=environment.ENVIRONMENTS["build"].interpreter,
                epoch=epoch,
                out_dir=out,
            ).read_bytes()
        )
    assert made[0] != made[1]


@pytest.mark.parametrize("upstream", PACKAGES)
def test_wheel_holds_exactly_the_package_of_the_locked_tree(here: Pair, upstream: str) -> None:
    """Overlay data files included, nothing unlocked, nothing compiled."""
    package = PACKAGES[upstream]
    tree = lockfile.load(here.project).upstreams[upstream].patched_tree
    listed = git.ls_tree(here.project.tree(upstream), tree)
    want = {os.fsdecode(path) for path in listed if path.startswith(f"{package}/".encode())}
    with zipfile.ZipFile(here.wheels[upstream]) as archive:
        have = {name for name in archive.namelist() if name.startswith(f"{package}/")}
    generated = {f"{package}/_version.py", f"{package}/distribution.json"}
    assert have == want | generated
    version = record.version(lockfile.load(here.project))
    assert f"'{version}'" in here.read(upstream, f"{package}/_version.py").decode(), "not upstream's own"


def test_versions_carry_the_lock_hash(here: Pair) -> None:
    lock = lockfile.load(here.project)
    for upstream in PACKAGES:
        headers = HeaderParser().parsestr(here.read(upstream, "INFO/METADATA").decode())
        base, _, local = headers["Version"].partition("+frontier.")
        assert base == lock.get("vllm").version
        assert len(local) >= 8
        assert lock.hash.startswith(local)
        facts = json.loads(here.read(upstream, f"{PACKAGES[upstream]}/distribution.json"))
        assert facts["lock_hash"] == lock.hash
        assert facts["version"] == headers["Version"]
        assert {item["name"]: item.get("commit") or item["sha256"] for item in facts["upstreams"]} == {
            name: item.pin for name, item in lock.upstreams.items()
        }


def test_local_version_of_digits_alone_grows_to_a_letter() -> None:
    class Digits:
        hash = "0123456789" + "a" * 54

        @staticmethod
        def get(name: str) -> lockfile.Upstream:
            return lockfile.Upstream(name, "sdist", "", "1.2", "")

    assert record.version(Digits()) == "1.2+frontier.0123456789a"  # type: ignore[arg-type]


@pytest.mark.parametrize("upstream", PACKAGES)
def test_notice_names_the_changed_files(here: Pair, upstream: str) -> None:
    """Compared with git's own view of the tree, not with the code that wrote the notice."""
    tree = here.project.tree(upstream)
    root = git.text(tree, "rev-list", "--max-parents=0", "HEAD")
    changed = git.text(tree, "log", "--format=", "--name-only", "--diff-filter=M", f"{root}..HEAD").split()
    added = git.text(tree, "diff", "--name-only", "--diff-filter=A", root, "HEAD").splitlines()
    text = here.read(upstream, "INFO/licenses/NOTICE").decode()
    sections = dict(re.findall(r"^(Changed|Removed|Added) \(\d+\):\n((?:  .*\n)*)", text, flags=re.M))
    named = {key: [line.split("  (")[0].strip() for line in body.splitlines()] for key, body in sections.items()}
    assert set(named["Changed"]) - {"none"} == set(changed) - set(added)
    assert set(named["Added"]) - {"none"} == set(added)
    assert "Built with Muse Spark Open." in text


def test_record_prints_without_torch(here: Pair, tmp_path: Path) -> None:
    """`python -m vllm_gaudi.distribution` from the wheels alone; a wheel of another lock is named."""
    for wheel in here.wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "vllm_gaudi.distribution"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lock_hash"] == lockfile.load(here.project).hash
    assert not re.search(r"\| +(torch|vllm|numpy)(\.|$)", done.stderr, flags=re.M)

    foreign = tmp_path / "vllm" / "distribution.json"
    foreign.write_text(json.dumps({**json.loads(foreign.read_text()), "lock_hash": "f" * 64}))
    done = subprocess.run(command[:1] + command[3:], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "different locks" in done.stderr
    foreign.unlink()
    done = subprocess.run(command[:1] + command[3:], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not installed from a wheel of `make wheels`" in done.stderr


def test_bill_of_materials_states_wheels_and_patches(here: Pair) -> None:
    bill = json.loads(next(here.project.root.glob("dist/*.cdx.json")).read_text())
    lock = lockfile.load(here.project)
    parts = {item["name"]: item for item in bill["components"]}
    for upstream, wheel in here.wheels.items():
        part = parts[PACKAGES[upstream]]
        assert part["hashes"] == [{"alg": "SHA-256", "content": wheels._sha256(wheel)}]
        series = stack.read_series(here.project, upstream)
        texts = [patch["diff"]["text"]["content"] for patch in part["pedigree"].get("patches", [])]
        assert sorted(text.partition(":")[0] for text in texts) == sorted(series)
    assert parts["transformers"]["version"] == environment.pins(ROOT / "requirements/serve.txt")["transformers"]
    assert bill["metadata"]["component"]["properties"] == [{"name": "lock-hash", "value": lock.hash}]


def test_dist_is_trusted_by_content(elsewhere: Pair) -> None:
    """Fresh only while every file has its digest and every input its value: a stamp alone proves nothing (P12)."""
    dist = elsewhere.project.root / "dist"
    inputs = json.loads((dist / wheels.MANIFEST).read_text())["inputs"]
    assert wheels.current(dist, inputs) is not None
    assert wheels.current(dist, {**inputs, "lock_hash": "0" * 64}) is None
    victim = elsewhere.wheels["vllm-gaudi"]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert wheels.current(dist, inputs) is None
    victim.unlink()
    assert wheels.current(dist, inputs) is None
    victim.write_bytes(whole)
    assert wheels.current(dist, inputs) is not None


def test_patches_that_are_not_locked_are_refused(elsewhere: Pair) -> None:
    """An edited overlay must not come out under the old lock hash."""
    extra = elsewhere.project.overlay("vllm-gaudi") / "vllm_gaudi" / "unlocked.py"
    extra.parent.mkdir(parents=True, exist_ok=True)
    extra.write_text("x = 1\n")
    try:
        with pytest.raises(ToolError, match="patches or overlay of `vllm-gaudi` are not the locked ones"):
            wheels.build(elsewhere.project)
    finally:
        extra.unlink()


def test_source_date_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ToolError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        wheels.source_date({})
