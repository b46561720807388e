# SPDX-License-Identifier: Apache-2.0
"""Parsing, rendering and applying diffs, against git as the independent reference."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gates.build.demo import git, write
from scripts import diff, paths
from scripts.carrying import hunks_between, merge
from scripts.git import blob_id

LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"\xff\0\n", b" \n", b"-x\n", b"@@ -1 +1 @@\n", b"\\ No\n"]),
    max_size=12,
)
TEXT = st.tuples(LINES, st.sampled_from([b"", b"end", b"\\ No newline at end of file"])).map(
    lambda t: b"".join(t[0]) + t[1]
)
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def change_of(old: bytes, new: bytes) -> diff.FileDiff:
    return diff.FileDiff(b"f", "100644", "100644", blob_id(old), blob_id(new), hunks_between(old, new))


@QUIET
@given(TEXT, TEXT)
def test_round_trip_and_git_agree(tmp_path: Path, old: bytes, new: bytes) -> None:
    """What we render, git applies to the same bytes, and we parse back to the same change."""
    if old == new:
        return
    change = change_of(old, new)
    text = diff.render([change])
    assert diff.parse(text) == [change]
    assert diff.apply(change, old) == new
    write(tmp_path / "f", old)
    done = subprocess.run(
        ["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=text, capture_output=True, check=False,
        env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f").read_bytes() == new


@QUIET
@given(TEXT, TEXT, TEXT)
def test_apply_refuses_every_other_content(old: bytes, new: bytes, other: bytes) -> None:
    if old == new or other == old:
        return
    with pytest.raises(diff.DiffError):
        diff.apply(change_of(old, new), other)


@given(st.binary(min_size=1, max_size=20))
def test_quoting_is_reversible(path: bytes) -> None:
    assert paths.unquote(paths.quote(path)) == path


def test_quoting_is_git_s(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    names = [b"sp ace", b'qu"ote', b"new\nline", b"tab\t", b"back\\slash", b"lat\xe9", b"bell\a", b"del\x7f", b"plain"]
    for name in names:
        (Path(str(tmp_path)) / name.decode("latin-1").encode("latin-1").decode("utf-8", "surrogateescape")).write_text(
            "x"
        )
    git(tmp_path, "add", "-A")
    assert sorted(git(tmp_path, "ls-files").split("\n")) == sorted(paths.quote(n) for n in names)


GOOD = diff.render([change_of(b"a\nb\nc\n", b"a\nB\nc\nd\n")])


@pytest.mark.parametrize(
    ("old", "new", "message", "rule"),
    [
        (b"@@ -2 +2 @@\n", b"@@ -2 +2 @@ def f():\n", "quotes upstream", "heading"),
        (b"-b\n", b" a\n-b\n", "context line", "context"),
        (b"+d\n", b"+d\n c\n", "context line", "context"),
        (b"index ", b"index 1", "two full 40-digit ids", "form"),
        (b" 100644\n---", b"\n---", "no mode", "form"),
        (b"diff --git a/f b/f", b"diff --git a/f b/g", "equal X", "form"),
        (b"diff --git a/f b/f", b"diff --git f f", "equal X", "form"),
        (b"--- a/f\n", b"similarity index 90%\nrename from x\nrename to f\n--- a/f\n", "unexpected line", "form"),
        (b"@@ -2 +2 @@\n", b"@@ -2,2 +2 @@\n", "expected a `-` line", "form"),
        (b"+d\n", b"", "expected a `+` line", "form"),
        (b"--- a/f\n+++ b/f\n", b"GIT binary patch\nliteral 1\n", "unexpected line", "form"),
    ],
)
def test_what_is_no_canonical_patch(old: bytes, new: bytes, message: str, rule: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(diff.DiffError, match=re.escape(message)) as caught:
        diff.parse(GOOD.replace(old, new, 1))
    assert caught.value.rule == rule
    assert str(caught.value).startswith("line ")


def test_hunks_that_overlap_or_lie() -> None:
    old = b"1\n2\n3\n4\n"
    change = change_of(old, b"1\nx\n3\ny\n")
    first, second = change.hunks
    for hunks in ((second, first), (first, first), (diff.Hunk(9, (b"2\n",), 9, (b"x\n",)),)):
        with pytest.raises(diff.DiffError):
            diff.apply(diff.FileDiff(b"f", "100644", "100644", change.old_id, change.new_id, hunks), old)


def test_merge_is_exact_about_conflicts() -> None:
    base = b"1\n2\n3\n4\n5\n6\n"
    assert merge(base, b"0\n" + base, base.replace(b"5\n", b"five\n")) == (b"0\n1\n2\n3\n4\nfive\n6\n", True)
    text, clean = merge(base, base.replace(b"3\n", b"A\n"), base.replace(b"3\n", b"B\n"))
    assert not clean
    assert text is not None
    assert b"<<<<<<< upstream\nA\n||||||| before\n3\n=======\nB\n>>>>>>> patch\n" in text
    assert merge(b"\0a\n", b"\0b\n", b"\0c\n") == (None, False)


@pytest.mark.parametrize(
    ("path", "target", "leaves"),
    [
        (b"a/b", b"../c", False),
        (b"a/b", b"../../c", True),
        (b"l", b"x/../..", True),
        (b"l", b"/x", True),
        (b"a/b", b"./c", False),
    ],
)
def test_links(path: bytes, target: bytes, leaves: bool) -> None:
    assert paths.link_leaves(path, target) is leaves
