# SPDX-License-Identifier: Apache-2.0
"""Odd words on the command line: numbers out of range, options in either place, options without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from gates.build.demo import Demo, Result, Tool, _run_here, write
from scripts import rebase_report

NUMBERS = {
    "show": (["five", "-U"], ["-3", "-1", "1000001", "9" * 5000, "1.5", "1_0", " 7", "٣", "", "x"], ["0", "1000000"]),
    "demo": (["--port"], ["-1", "65536", "9" * 30, "8000.0", "http"], []),
}


@pytest.mark.parametrize(("verb", "word"), [(v, w) for v, (_, bad, _) in NUMBERS.items() for w in bad])
def test_a_number_out_of_range_is_refused(demo: Demo, tool: Tool, verb: str, word: str) -> None:
    result = tool.run(demo, verb, *NUMBERS[verb][0], word)
    assert result.code == 2
    assert "is no whole number from 0 to " in result.err or "expected one argument" in result.err
    assert not result.out


@pytest.mark.parametrize("word", NUMBERS["show"][2])
def test_the_ends_of_the_range_are_in_it(demo: Demo, tool: Tool, word: str) -> None:
    assert "+hook 5" in tool.ok(demo, "show", "five", "-U", word)


@pytest.mark.parametrize("value", ["-1", "1e9", "٣", "4354819200", "9" * 5000])
def test_a_source_date_that_no_archive_can_hold(demo: Demo, tool: Tool, value: str) -> None:
    demo.env["SOURCE_DATE_EPOCH"] = value
    error = tool.refused(demo, "wheels")
    assert "not whole seconds since 1970 and before 2108" in error


def test_a_patch_date_that_is_no_date(demo: Demo, tool: Tool) -> None:
    path = demo.patches / "five.patch"
    path.write_text(path.read_text().replace("Last-Update: 2026-01-02", "Last-Update: 02.01.2026"))
    tool.ok(demo, "lock")
    error = tool.refused(demo, "wheels")
    assert "Last-Update of patch `five` is no date: '02.01.2026'" in error
    assert "where: patches/demo/five.patch" in error


def run(demo: Demo, *words: str) -> Result:
    """The command line as given, without the --root that `Tool` puts after the verb."""
    return _run_here(list(words), Tool().environment(demo))


def test_options_of_the_project_go_before_or_after_the_verb(demo: Demo) -> None:
    root = ["--root", str(demo.root)]
    after = run(demo, "status", "--json", *root)
    assert after.code == 0
    for words in ([*root, "status", "--json"], ["--root=/nonexistent", "status", *root, "--json"]):
        assert run(demo, *words) == after
    source = ["--source", f"demo={demo.upstream}"]
    missing = ["--source", "demo=/nonexistent"]
    assert run(demo, *source, "fetch", *root).code == 0
    assert run(demo, *missing, *root, "fetch").code == 4
    assert run(demo, *missing, *root, "fetch", *source).code == 0, "the last one counts, as after the verb"
    assert run(demo, *source, *root, "fetch", "--source", "other=x").code == 2, "none is lost on the way"


@pytest.mark.parametrize("word", ["--root", "--source"])
def test_the_value_of_an_option_is_no_verb(demo: Demo, word: str) -> None:
    """`lock` here is the value: without a verb after it the command line is wrong."""
    result = run(demo, word, "lock")
    assert result.code == 2
    assert "required: VERB" in result.err


@pytest.mark.parametrize("mode", ["--abort", "--continue"])
@pytest.mark.parametrize("word", [["--drop", "five"], ["--accept"], ["--report", "build/x.md"]])
def test_options_without_effect_are_refused(demo: Demo, tool: Tool, mode: str, word: list[str]) -> None:
    error = tool.refused(demo, "rebase", "--upstream", "demo", mode, *word, code=2)
    assert f"{word[0]} has no effect with {mode}" in error


def test_a_report_goes_where_it_destroys_nothing(demo: Demo, tool: Tool) -> None:
    write(demo.upstream / "b.txt", b"one\ntwo\n3\n")
    commit = demo.commit_upstream("next")
    write(demo.root / "README.md", b"# mine\n")
    write(demo.root / "docs/x.md/file", b"")
    (demo.root / "away.md").symlink_to(demo.folder / "outside.md")
    words = ["rebase", "--upstream", "demo", "--to", commit, "--report"]
    before = demo.snapshot()
    for bad in ("../x.md", "/tmp/x.md", "upstream.lock", "README.md", "docs/x.md", ".", "", "away.md"):
        error = tool.refused(demo, *words, bad, code=2)
        assert f"`--report {bad}`" in error
    assert demo.snapshot() == before
    tool.ok(demo, *words, "docs/reports/ü x.md")
    tool.ok(demo, *words, "docs/reports/ü x.md")
    assert rebase_report.COLUMNS in (demo.root / "docs/reports/ü x.md").read_text()


def test_control_a_report_put_anywhere_is_caught(demo: Demo, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.rebase.refuse_odd_words", lambda project, args: None)
    with pytest.raises(AssertionError):
        test_a_report_goes_where_it_destroys_nothing(demo, tool)
    assert Path(demo.root / "README.md").exists()
