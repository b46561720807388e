# SPDX-License-Identifier: Apache-2.0
"""Upstream's own unit tests that run without a device, on the published tree and on the patched one.

    python -m gates.cpu.runner.upstream_tests PUBLISHED_TREE PATCHED_TREE

Prints one line per test whose outcome differs and exits 1 if there is one. Both trees need the emulated Gaudi on
PYTHONPATH; upstream's test files are taken from each tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

# Files that need neither checkpoints from a hub nor several devices.
FILES = (
    "test_bucketing.py",
    "test_decode_bucket_hybrid.py",
    "test_defragmentation.py",
    "test_flags.py",
    "test_utils.py",
    "test_platform.py",
    "test_vision_resolutions.py",
    "sampler/test_hpu_sampler.py",
    "worker/test_ensure_multi_token_decodes_last.py",
    "worker/test_hpu_input_batch.py",
    "worker/test_hpu_mm_prefill_batching.py",
)


def outcomes(tree: Path, files: tuple[str, ...] = FILES, timeout: float = 1200) -> dict[str, str]:
    """Outcome of every test of `files` run on `tree`: passed, failed, error or skipped."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "PT_HPU_LAZY_MODE": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
        paths = [f"tests/unit_tests/{name}" for name in files if (tree / "tests/unit_tests" / name).exists()]
        # A tree inside this project must not take its pytest settings.
        options = [f"--rootdir={tree}", f"--config-file={tree / 'pyproject.toml'}", f"--junitxml={report}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *paths],
            cwd=tree,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        found = {}
        for case in ET.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


def differences(published: dict[str, str], patched: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Tests whose outcome differs: name -> (published, patched)."""
    names = published.keys() | patched.keys()
    pairs = {n: (published.get(n, "absent"), patched.get(n, "absent")) for n in sorted(names)}
    return {n: pair for n, pair in pairs.items() if pair[0] != pair[1]}


def main(published: str, patched: str) -> int:
    before, after = outcomes(Path(published)), outcomes(Path(patched))
    changed = differences(before, after)
    for name, (old, new) in changed.items():
        print(f"{name}: {old} published, {new} patched")
    counts = {kind: list(after.values()).count(kind) for kind in sorted(set(after.values()))}
    print(f"{len(after)} tests, {len(changed)} differ; patched: {counts}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
