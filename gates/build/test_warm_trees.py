# SPDX-License-Identifier: Apache-2.0
"""`trees` with nothing to do looks at no file twice and loads nothing it does not need."""

from __future__ import annotations

import subprocess
import sys
import time

from gates.build.demo import ROOT, Demo, Tool


def test_a_fresh_tree_is_compared_by_content_once(demo: Demo, tool: Tool) -> None:
    """Files of the index's own second may have changed after it; once seen clean, a later look goes by their times."""
    index = demo.tree / ".git/index"
    tool.ok(demo, "trees", "--force")
    demo.patches.joinpath("series").write_text("# touched\n" + (demo.patches / "series").read_text())
    tool.ok(demo, "trees")
    built = index.stat().st_mtime_ns
    time.sleep(1.1)
    assert "unchanged" in tool.ok(demo, "trees")
    looked = index.stat().st_mtime_ns
    assert looked > built, "what was found clean is noted"
    assert "unchanged" in tool.ok(demo, "trees")
    assert index.stat().st_mtime_ns == looked, "nothing is left to note"


def test_edits_within_the_same_second_are_still_seen(demo: Demo, tool: Tool) -> None:
    tool.ok(demo, "trees")
    path = demo.tree / "b.txt"
    path.write_bytes(path.read_bytes().replace(b"two", b"owt"))
    assert "uncommitted changes" in tool.refused(demo, "trees", code=6)


def test_the_parser_that_keeps_comments_is_not_loaded_to_read() -> None:
    program = "import sys, scripts.__main__, scripts.trees; print('tomlkit' in sys.modules, 'inspect' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n", "control: the second is loaded by every dataclass"
