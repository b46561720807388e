# SPDX-License-Identifier: Apache-2.0
"""Run one pytest node in the environment its folder belongs to, and read the verdict from the report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from scripts.errors import ToolError
from scripts.paths import Project

PYTHON_VARIABLE = "VLLM_GAUDI_FRONTIER_PYTHON_"
# Folder of a test -> name of the environment it runs in; the longest match counts.
ENVIRONMENTS = {"gates": "dev", "gates/cpu": "serve", "gates/oracle": "hf"}


@dataclass(frozen=True)
class Verdict:
    """Counts of one run and its last lines of output. `failed` are assertions and errors inside the test itself."""

    passed: int
    failed: int
    errors: int
    skipped: int
    output: str
    reason: str = ""

    @property
    def word(self) -> str:
        """PASS, FAIL, SKIP or ERROR; ERROR also when nothing ran."""
        if self.errors or not (self.passed or self.failed or self.skipped):
            return "ERROR"
        if self.failed:
            return "FAIL"
        return "PASS" if self.passed else "SKIP"


def environment_of(node: str) -> str:
    """Name of the environment a test node runs in."""
    folder = node.split("::")[0]
    best = max((f for f in ENVIRONMENTS if folder.startswith(f + "/")), key=len, default="gates")
    return ENVIRONMENTS[best]


def interpreter(project: Project, name: str) -> Path:
    """Python of an environment: VLLM_GAUDI_FRONTIER_PYTHON_<NAME>, else build/<name>/bin/python; `dev` is our own."""
    variable = PYTHON_VARIABLE + name.upper()
    chosen = Path(
        os.environ.get(variable) or (sys.executable if name == "dev" else project.build / name / "bin/python")
    )
    if not chosen.exists():
        raise ToolError(
            f"environment `{name}` is not there",
            where=str(chosen),
            action=f"run `make env`, or name its interpreter in {variable}",
        )
    return chosen


def run(project: Project, node: str, extra: dict[str, str]) -> Verdict:
    """Run the test `node` from the project's root with `extra` in its environment. Raises ToolError for no Python."""
    python = interpreter(project, environment_of(node))
    with tempfile.TemporaryDirectory(prefix="frontier-") as scratch:
        report = Path(scratch) / "report.xml"
        # Patched bytecode must not outlive the tree it came from.
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **extra}
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", node]
        done = subprocess.run(
            command, cwd=project.root, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []
    counts = dict.fromkeys(("passed", "failure", "error", "skipped"), 0)
    reason = ""
    for case in cases:
        kind = next((child for child in case if child.tag in counts), None)
        counts["passed" if kind is None else kind.tag] += 1
        reason = reason or ("" if kind is None else kind.get("message", ""))
    tail = "\n".join(output.strip().splitlines()[-25:])
    return Verdict(counts["passed"], counts["failure"], counts["error"], counts["skipped"], tail, reason)
