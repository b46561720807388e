# SPDX-License-Identifier: Apache-2.0
"""The committed rebase reports are what `rebase` says today. Minutes long, and it needs the real sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gates.build.demo import ROOT

REPORTS = {
    "vllm-gaudi-0.26.0-to-0.27.0rc0": ("vllm-gaudi", "v0.27.0rc0"),
    "vllm-gaudi-0.26.0-to-main-091bbadd": ("vllm-gaudi", "091bbadda10bee4fd3f6d0efc1844d2610dd2707"),
    "vllm-gaudi-0.26.0-to-0.24.0": ("vllm-gaudi", "v0.24.0"),
    "vllm-0.26.0-to-0.28.0": ("vllm", "0.28.0"),
    "vllm-0.26.0-to-0.30.0": ("vllm", "0.30.0"),
}


@pytest.mark.long
@pytest.mark.network
@pytest.mark.parametrize("name", list(REPORTS))
def test_report_is_current(name: str, real_trees: Path) -> None:
    upstream, to = REPORTS[name]
    again = f"build/rebase-reports/{name}.md"
    done = subprocess.run(
        [sys.executable, "-m", "scripts", "rebase", "--upstream", upstream, "--to", to, "--report", again],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 4:
        pytest.skip("source unreachable: " + " ".join(done.stderr.split("error: ")[-1].split()))
    assert done.returncode in (0, 5), done.stderr
    # A commit given in full is reported without the name of its branch.
    old, new = ((ROOT / path).read_text().replace("(main, ", "(") for path in (f"docs/rebase-reports/{name}.md", again))
    assert new == old, f"regenerate it: rebase --upstream {upstream} --to {to} --report docs/rebase-reports/{name}.md"


def test_every_committed_report_is_held_to_it() -> None:
    assert {path.stem for path in (ROOT / "docs/rebase-reports").glob("*.md")} == set(REPORTS)
