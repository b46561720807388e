# SPDX-License-Identifier: Apache-2.0
"""A newer pair of upstreams under the same emulation: vllm-gaudi main at 091bbadd with vLLM 0.28.0, both unmodified.

    python -m gates.hpusim.pair FOLDER [--vllm 0.28.0] [--plugin 091bbadda10b...]      # fetch, lay out, serve, judge

The sources go to FOLDER as two trees with the distribution metadata an installation would have; they come before the
installed wheels on PYTHONPATH. Run it in the serving environment.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from gates.hpusim import checkpoints, reference, testing

VLLM = "0.28.0"
PLUGIN = "091bbadda10bee4fd3f6d0efc1844d2610dd2707"
PLUGIN_URL = "https://github.com/vllm-project/vllm-gaudi"


class PairError(Exception):
    """A source could not be had, with what was tried."""


def _run(command: list[str], **options: object) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise PairError(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def _metadata(folder: Path, name: str, version: str, entry_points: str = "") -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)


def vllm_tree(folder: Path, version: str = VLLM) -> Path:
    """Python files of the vLLM sdist, as the empty build installs them; PairError when there is no such release."""
    target = folder / f"vllm-{version}"
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    archive = folder / f"vllm-{version}.tar.gz"
    if not archive.exists():
        environment = {**os.environ, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-qq",
            f"vllm=={version}",
            "--no-deps",
            "--no-binary",
            "vllm",
        ]
        _run([*command, f"vllm=={version}", "-d", str(folder)], env=environment)
    with tarfile.open(archive) as tar:
        prefix = f"vllm-{version}/vllm/"
        members = [member for member in tar.getmembers() if member.name.startswith(prefix)]
        for member in members:
            member.name = member.name.removeprefix(f"vllm-{version}/")
        tar.extractall(target, members, filter="data")
    numbers = tuple(int(part) for part in version.split("."))
    (target / "vllm" / "_version.py").write_text(
        f"__version__ = version = {version + '+empty'!r}\n__version_tuple__ = version_tuple = {numbers!r}\n"
    )
    _metadata(target, "vllm", f"{version}+empty")
    (target / "complete").touch()
    return target


def plugin_tree(folder: Path, revision: str = PLUGIN, source: str = PLUGIN_URL) -> Path:
    """Checkout of vllm-gaudi at `revision`; PairError when the repository cannot be reached or lacks it."""
    target = folder / f"vllm-gaudi-{revision[:8]}"
    if (target / "complete").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    _run(["git", "clone", "-q", "--no-checkout", source, str(target)])
    _run(["git", "checkout", "-q", revision], cwd=target)
    text = (target / "setup.py").read_text()
    groups = ("vllm.platform_plugins", "vllm.general_plugins")
    lines = []
    for group in groups:
        block = text.split(f'"{group}": [', 1)[1].split("]", 1)[0]
        lines += [f"[{group}]", *(part.strip().strip('",') for part in block.splitlines() if "=" in part), ""]
        if "=" in block and "\n" not in block.strip():
            lines[-2:] = [block.strip().strip('"'), ""]
    _metadata(target, "vllm_gaudi", "0.28.0", "\n".join(lines))
    (target / "complete").touch()
    return target


def search_path(folder: Path) -> str:
    """PYTHONPATH with the pair before what is installed."""
    trees = [str(vllm_tree(folder)), str(plugin_tree(folder))]
    return os.pathsep.join([*trees, str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])


def served_check(folder: Path, architecture: str = "qwen3_moe") -> tuple[testing.Run, reference.Verdict]:
    """Serve a tiny checkpoint with the pair and judge its tokens by transformers."""
    source = random.Random(5)
    prompts = [[source.randrange(8, 512) for _ in range(length)] for length in (7, 40, 129)]
    model = checkpoints.make(architecture, folder)
    batch = {"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 24, "ignore_eos": True}}
    env = {"PYTHONPATH": search_path(folder)}
    run = testing.run_engine(model, [batch], mode="lazy_eager", env=env, call="gates.hpusim.pair:versions")
    (verdict,) = reference.judge([(model, prompts, run.tokens(0))])
    return run, verdict


def versions(_: object) -> dict[str, str]:
    """What the engine process really ran."""
    import importlib.metadata

    import vllm

    import vllm_gaudi

    found = {name: importlib.metadata.version(name) for name in ("vllm", "vllm_gaudi")}
    return {**found, "vllm_file": vllm.__file__, "vllm_gaudi_file": vllm_gaudi.__file__}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.hpusim.pair", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="where sources and checkpoint are kept")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        run, verdict = served_check(options.folder)
    except PairError as error:
        print(f"pair: {error}", file=sys.stderr)
        return 1
    print(run.answer["call"], verdict, run.meters[0]["steps"], run.meters[0]["missing"], sep="\n")
    return 0 if verdict.largest <= reference.NEAR_TIE else 1


if __name__ == "__main__":
    sys.exit(main())
