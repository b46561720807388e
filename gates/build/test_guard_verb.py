# SPDX-License-Identifier: Apache-2.0
"""`guard`: it drops just one patch, and only a guard that fails without it and passes with it counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gates.build.demo import FIELDS, Demo, Tool, weakened, write
from scripts import env

TESTS = """\
import os
import sys
from pathlib import Path

import pytest

TREE = Path(os.environ["FRONTIER_TREE_DEMO"])


def test_good():
    assert "hook" in (TREE / "b.txt").read_text()


def test_always_passes():
    assert (TREE / "b.txt").exists()


def test_always_fails():
    assert False


def test_skips():
    pytest.skip("no device here")


def test_breaks(missing_fixture):
    pass


def test_only_this_is_gone():
    assert "hook 5" in (TREE / "a.txt").read_text()
    assert "line twenty" in (TREE / "a.txt").read_text()
    assert "log(x)" in (TREE / "pkg/mod.py").read_text()
    assert "hook" in (TREE / "b.txt").read_text()
"""


def guarded(demo: Demo, tool: Tool, test: str) -> None:
    write(demo.root / "gates/test_demo.py", TESTS.encode() + b"\n\ndef test_x():\n    pass\n")
    fields = FIELDS.replace("test_x", test)
    demo.change(demo.edit("b.txt", b"two\n", b"two\nhook\n"), "Guarded", "guarded", fields)
    tool.ok(demo, "export")


@pytest.mark.parametrize(
    ("test", "code", "verdict"),
    [
        ("test_good", 0, "PASS guard fails without it and passes with it"),
        ("test_always_passes", 1, "FAIL without the patch its guard says PASS"),
        ("test_always_fails", 1, "FAIL with the patch its guard says FAIL"),
        ("test_skips", 0, "SKIP no device here"),
        ("test_breaks", 1, "ERROR without the patch its guard says ERROR"),
        ("test_absent", 1, "ERROR guard `gates/test_demo.py::test_absent`: `test_absent` is not defined there"),
    ],
)
def test_verdicts(demo: Demo, tool: Tool, test: str, code: int, verdict: str) -> None:
    guarded(demo, tool, test)
    result = tool.run(demo, "guard", "guarded")
    assert f"demo/guarded {verdict}" in result.out, result.out + result.err
    assert result.code == code


def test_just_that_patch_is_dropped(demo: Demo, tool: Tool) -> None:
    """Later patches of the same file stay, carried over the gap; the built tree is not touched."""
    guarded(demo, tool, "test_good")
    five = demo.patches / "five.patch"
    five.write_text(five.read_text().replace("test_demo.py::test_x", "test_demo.py::test_only_this_is_gone"))
    write(
        demo.root / "gates/test_demo.py",
        TESTS.replace(
            'assert "hook 5" in (TREE / "a.txt").read_text()', 'assert "hook 5" in (TREE / "a.txt").read_text(), 1'
        ).encode(),
    )
    tool.ok(demo, "trees")
    before = demo.files()
    assert "demo/five PASS" in tool.ok(demo, "guard", "five")
    assert demo.files() == before
    assert not list((demo.root / "build/guard").iterdir())


def test_control_a_guard_run_that_drops_nothing(demo: Demo, tmp_path: Path, tool: Tool) -> None:
    guarded(demo, tool, "test_good")
    weak = weakened(
        tmp_path / "weak",
        ("guard.py", "            if patch.name != name:", "            if True:"),
        ("guard.py", "        if len(commits) + len(gone) + 1 != len(loaded.patches):", "        if False:"),
    )
    assert "FAIL without the patch its guard says PASS" in weak.run(demo, "guard", "guarded").out


def test_patches_that_build_on_it_are_named(demo: Demo, tool: Tool) -> None:
    guarded(demo, tool, "test_good")
    demo.change(demo.edit("b.txt", b"hook\n", b"hook changed\n"), "On top", "ontop")
    tool.ok(demo, "export")
    assert "PASS guard fails without it (with ontop, which build on it)" in tool.ok(demo, "guard", "guarded")


def test_environment_that_is_missing(demo: Demo, tool: Tool) -> None:
    write(demo.root / "gates/cpu/test_y.py", b"def test_y():\n    pass\n")
    fields = FIELDS.replace("gates/test_demo.py::test_x", "gates/cpu/test_y.py::test_y")
    demo.change(demo.edit("b.txt", b"two\n", b"two\nhook\n"), "Guarded", "guarded", fields)
    tool.ok(demo, "export")
    error = tool.refused(demo, "guard", "guarded")
    assert "VLLM_GAUDI_FRONTIER_PYTHON_SERVE" in error


def test_environments_of_the_chosen_guards_are_made_first(
    demo: Demo, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the guards need and no others; where the user named an interpreter, that one stands."""
    asked: list[list[str]] = []
    monkeypatch.setattr(env, "run", lambda project, args: asked.append(args.names))
    for number, folder in enumerate(("cpu", "oracle", "cpu")):
        write(demo.root / f"gates/{folder}/test_y{number}.py", b"def test_y():\n    pass\n")
        fields = FIELDS.replace("gates/test_demo.py::test_x", f"gates/{folder}/test_y{number}.py::test_y")
        text = (demo.tree / "b.txt").read_bytes()
        demo.change({"b.txt": b"%d\n" % number + text}, f"Hook {number}", f"hook{number}", fields)
    tool.ok(demo, "export")
    demo.env.update(VLLM_GAUDI_FRONTIER_PYTHON_HF=sys.executable)
    tool.run(demo, "guard", "--make-env", "five")
    assert asked == []
    tool.run(demo, "guard", "--make-env", "hook0", "hook1", "hook2")
    assert asked == [["serve"]]
    tool.run(demo, "guard", "hook0")
    assert asked == [["serve"]]
