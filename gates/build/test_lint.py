# SPDX-License-Identifier: Apache-2.0
"""Every lint rule on its .pass, .fail and .skip fixture, and cases beyond them.

A fixture is a small project in one file: `== path` begins a file, `== base` lists what upstream has.
"""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, write
from scripts import lint_rules, stack

FIXTURES = Path(__file__).parent / "fixtures" / "lint"


def subject_of(text: str, folder: Path) -> lint_rules.Subject:
    """Unpack a fixture into `folder` and make what the rules look at."""
    files: dict[str, str] = {}
    for part in text.split("== ")[1:]:
        name, _, content = part.partition("\n")
        files[name] = content
    base = None
    if "base" in files:
        rows = (line.split(" ", 1) for line in files.pop("base").splitlines())
        base = {name.encode(): (mode, "0" * 40) for mode, name in rows}
    for name, content in files.items():
        write(folder / name, content.encode())
    prefix = "patches/demo/"
    patches = {
        n[len(prefix) :]: c.encode() for n, c in files.items() if n.startswith(prefix) and n != prefix + "series"
    }
    overlay = stack.read_overlay(folder / "overlay/demo")
    today = datetime.date(2026, 6, 1)
    return lint_rules.Subject("demo", files.get(prefix + "series", ""), patches, overlay, base, folder, today)


def fixture(rule: str, kind: str, folder: Path) -> lint_rules.Subject:
    return subject_of((FIXTURES / f"{rule}.{kind}").read_text(), folder)


def test_every_rule_has_its_three_fixtures() -> None:
    names = {p.name for p in FIXTURES.iterdir()}
    assert names == {f"{rule}.{kind}" for rule in lint_rules.RULES for kind in ("pass", "fail", "skip")}


@pytest.mark.parametrize("rule", list(lint_rules.RULES))
def test_pass(rule: str, tmp_path: Path) -> None:
    assert lint_rules.judge(rule, fixture(rule, "pass", tmp_path)) == []


@pytest.mark.parametrize("rule", list(lint_rules.RULES))
def test_fail(rule: str, tmp_path: Path) -> None:
    found = lint_rules.judge(rule, fixture(rule, "fail", tmp_path))
    assert found
    for finding in found:
        assert finding.where.startswith(("patches/demo/", "overlay/demo")), "the place is named"
        assert finding.what
        assert finding.action


@pytest.mark.parametrize("rule", list(lint_rules.RULES))
def test_skip(rule: str, tmp_path: Path) -> None:
    with pytest.raises(lint_rules.Skip):
        lint_rules.judge(rule, fixture(rule, "skip", tmp_path))


@pytest.mark.parametrize("rule", list(lint_rules.RULES))
def test_fail_fixture_breaks_one_rule_only(rule: str, tmp_path: Path) -> None:
    subject = fixture(rule, "fail", tmp_path)
    for other in set(lint_rules.RULES) - {rule}:
        try:
            found = lint_rules.judge(other, subject)
        except lint_rules.Skip:
            continue
        # A header that cannot be read has no fields either; a listed patch that is twice there is still one file.
        assert not found, (other, found)


def values(folder: Path, old: str, new: str) -> list[str]:
    text = (FIXTURES / "header-values.pass").read_text()
    assert old in text
    return [f.what for f in lint_rules.judge("header-values", subject_of(text.replace(old, new), folder))]


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("Origin: vendor", "Origin: backport, https://example.org/c", 0),
        ("Origin: vendor", "Origin: somewhere", 1),
        ("https://example.org/1", "not-needed", 0),
        ("https://example.org/1", "http://example.org/1", 1),
        ("https://example.org/1", "docs/upstream/absent.md", 1),
        ("2026-01-02", "2026-02-30", 1),
        ("2026-01-02", "02.01.2026", 1),
        ("2026-01-02", "2026-07-01", 1),
    ],
)
def test_header_values(tmp_path: Path, old: str, new: str, count: int) -> None:
    assert len(values(tmp_path, old, new)) == count


def test_forwarded_to_a_text_in_docs(tmp_path: Path) -> None:
    write(tmp_path / "docs/upstream/hook.md", b"text\n")
    assert values(tmp_path, "https://example.org/1", "docs/upstream/hook.md") == []


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("gates/test_a.py", "is not gates/.../file.py::test"),
        ("tests/test_a.py::test_hook", "is not gates/.../file.py::test"),
        ("gates/../outside.py::test_hook", "the file does not exist"),
        ("gates/test_b.py::test_hook", "the file does not exist"),
        ("gates/test_a.py::TestX::test_z", "`test_z` is not defined there"),
    ],
)
def test_guard_names(tmp_path: Path, node: str, problem: str) -> None:
    fixture("guard", "pass", tmp_path)
    write(tmp_path / "outside.py", b"def test_hook():\n    pass\n")
    assert lint_rules.guard_problem(tmp_path, node) == problem


@pytest.mark.parametrize("text", [b"def (:\n", b"\xe9\n", b"\0\n"])
def test_guard_in_a_file_that_is_no_python(tmp_path: Path, text: bytes) -> None:
    write(tmp_path / "gates/test_a.py", text)
    problem = lint_rules.guard_problem(tmp_path, "gates/test_a.py::test_hook")
    assert (problem or "").startswith("the file is no Python: ")


def test_lint_reports_all_findings_at_once(demo: Demo, tool: Tool) -> None:
    tool.ok(demo, "lint")
    write(demo.patches / "stray.patch", b"not a patch\n")
    write(demo.overlay / "b.txt", b"shadow\n")
    path = demo.patches / "five.patch"
    path.write_text(path.read_text().replace("Forwarded: no", "Forwarded: perhaps"))
    error = tool.refused(demo, "lint", code=1)
    for rule in ("series-unused", "header-form", "overlay-shadow", "header-values"):
        assert f": {rule}: " in error


def test_lint_without_cache_skips_what_needs_it(demo: Demo, tool: Tool) -> None:
    shutil.rmtree(demo.cache)
    out = tool.ok(demo, "lint")
    assert "SKIP overlay-shadow (the upstream source is not in the cache)" in out


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        ("A Name <a@invalid>", "", 1),
        ("A Name <a@invalid>", "a@invalid", 1),
        ("A Name <a@invalid>", "<a@invalid>", 1),
        ("A Name <a@invalid>", "A <b> Name <a@invalid>", 1),
        ("A Name <a@invalid>", "A > Name <a@invalid>", 1),
        ("A Name <a@invalid>", "A Name <a@invalid> and more", 1),
        ("A Name <a@invalid>", "A Name <a@invalid>\n <b@invalid>", 1),
        ("A Name <a@invalid>", 'Ä. "N" O\'Name <>', 0),
        ("2026-01-02", "1969-12-31", 1),
        ("2026-01-02", "0001-01-01", 1),
        ("2026-01-02", "1970-01-01", 0),
        ("Removal: ", "Removal: \x1b[31m", 1),
        ("Removal: ", "Removal: \x7f", 1),
        ("Removal: ", "Removal: a\tb ", 0),
    ],
)
def test_header_commit(tmp_path: Path, old: str, new: str, count: int) -> None:
    text = (FIXTURES / "header-commit.pass").read_text()
    assert old in text
    subject = subject_of(text.replace(old, new, 1), tmp_path)
    assert len(lint_rules.judge("header-commit", subject)) == count


@pytest.mark.parametrize("author", ["foo", "A <b> N <a@invalid>", "A < b", "A <a@invalid> x", "<a@invalid"])
def test_author_that_is_no_ident_is_named_by_every_verb(author: str, demo: Demo, tool: Tool) -> None:
    path = demo.patches / "log.patch"
    path.write_text(re.sub("Author: .*", f"Author: {author}", path.read_text()))
    for verb, code in (("lint", 1), ("lock", 3), ("trees", 3), ("verify", 1)):
        error = tool.refused(demo, verb, code=code)
        assert "log" in error, verb
        assert "is not `Name <address>`" in error, verb
        assert "fast-import" not in error, verb


@pytest.mark.parametrize("date", ["1969-12-31", "0001-01-01", "9999-12-31", "x", "2026-13-01", ""])
def test_odd_dates_are_for_lint_to_name(date: str, demo: Demo, tool: Tool) -> None:
    path = demo.patches / "log.patch"
    path.write_text(path.read_text().replace("Last-Update: 2026-01-02", f"Last-Update: {date}"))
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    assert "log.patch" in tool.refused(demo, "lint", code=1)


def test_nul_in_a_header_is_named(demo: Demo, tool: Tool) -> None:
    path = demo.patches / "log.patch"
    path.write_bytes(path.read_bytes().replace(b"Removal: ", b"Removal: \0"))
    for verb, code in (("lint", 1), ("lock", 3), ("trees", 3)):
        assert "holds a NUL" in tool.refused(demo, verb, code=code)
