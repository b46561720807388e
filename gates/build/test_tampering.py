# SPDX-License-Identifier: Apache-2.0
"""P11 and `verify`: one flipped byte anywhere is named, each place with a message of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gates.build.demo import FILES, Demo, Tool, git, weakened
from gates.build.sdists import make_sdist_demo
from scripts.git import blob_id

Maker = Callable[..., Demo]


def flip(path: Path, at: int | None = None, *, keep_times: bool = False) -> None:
    """Flip one bit of the byte in the middle (or at `at`) of a file."""
    info = path.lstat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
    path.chmod(info.st_mode)
    if keep_times:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def flip_lock(demo: Demo) -> None:
    path = demo.root / "upstream.lock"
    text = path.read_text()
    at = text.index('patched-tree = "') + 20
    path.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])


def flip_series(demo: Demo) -> None:
    path = demo.patches / "series"
    path.write_bytes(path.read_bytes().replace(b"log.patch", b"lof.patch"))


def flip_patch(demo: Demo) -> None:
    path = demo.patches / "five.patch"
    flip(path, path.read_bytes().index(b"hook 5"))


def flip_header(demo: Demo) -> None:
    path = demo.patches / "five.patch"
    flip(path, path.read_bytes().index(b"why") + 1)


def flip_overlay(demo: Demo) -> None:
    flip(demo.overlay / "own/deep/file.txt")


def flip_cache(demo: Demo) -> None:
    name = blob_id(FILES["latin1.txt"])  # no patch reads this one, so nothing but a check of the cache can notice
    flip(next(demo.cache.glob(f"base/*/objects/{name[:2]}/{name[2:]}")))


def flip_tree(demo: Demo) -> None:
    # Same size, same times: git's own status would not look at the content again.
    flip(demo.tree / "a.txt", keep_times=True)


def flip_mode(demo: Demo) -> None:
    (demo.tree / "a.txt").chmod(0o755)


PLACES: dict[str, tuple[Callable[[Demo], None], str, tuple[str, str, str]]] = {
    "lock": (
        flip_lock,
        "the lock was changed by hand",
        ("lockfile.py", "    if lock.recorded_hash != lock.hash:", "    if False:"),
    ),
    "series": (
        flip_series,
        "patches/demo/series differs from its locked sha256",
        ("lock.py", "        elif locked[path] != actual[path]:", "        elif False:"),
    ),
    "patch": (
        flip_patch,
        "patches/demo/five.patch differs from its locked sha256",
        ("lock.py", "        elif locked[path] != actual[path]:", "        elif False:"),
    ),
    "header": (
        flip_header,
        "patches/demo/five.patch differs from its locked sha256",
        ("lock.py", "        elif locked[path] != actual[path]:", "        elif False:"),
    ),
    "overlay": (
        flip_overlay,
        "overlay/demo/own/deep/file.txt differs from its locked sha256",
        ("lock.py", "        elif locked[path] != actual[path]:", "        elif False:"),
    ),
    "cache": (
        flip_cache,
        "the cached base of `demo` is damaged",
        ("verify.py", '        git.run(repo, "fsck", "--full", "--no-dangling", "--no-progress")\n', "        pass\n"),
    ),
    "tree": (
        flip_tree,
        "a.txt was changed",
        ("verify.py", "    return None if git.blob_id(content) == name else", "    return None if True else"),
    ),
    "mode": (flip_mode, "a.txt has mode 100755", ("verify.py", "    if actual != mode:", "    if False:")),
}


def scenario(demo: Demo, tool: Tool, place: str) -> None:
    """The tampering is named, and told from every other one."""
    damage, message, _ = PLACES[place]
    damage(demo)
    error = tool.refused(demo, "verify", code=1)
    assert message in error, error
    others = {text for name, (_, text, _) in PLACES.items() if text != message} - {PLACES["cache"][1]}
    assert not [text for text in others if text in error], error


@pytest.mark.parametrize("place", list(PLACES))
def test_flipped_byte_is_named(place: str, demo: Demo, tool: Tool) -> None:
    tool.ok(demo, "verify")
    scenario(demo, tool, place)


@pytest.mark.parametrize("place", list(PLACES))
def test_weakened_build_is_caught(place: str, demo: Demo, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        scenario(demo, weakened(tmp_path / "weak", PLACES[place][2]), place)


def test_flipped_byte_in_cached_sdist(tmp_path: Path, tool: Tool) -> None:
    demo, _ = make_sdist_demo(tmp_path)
    tool.ok(demo, "lock")
    tool.ok(demo, "verify")
    flip(next(demo.cache.glob("sdist/*/*.tar.gz")))
    assert "the cached archive has sha256" in tool.refused(demo, "verify", code=1)


def test_missing_and_additional_files_are_named(demo: Demo, tool: Tool) -> None:
    (demo.overlay / "own/deep/file.txt").unlink()
    (demo.overlay / "own/extra.txt").write_text("extra\n")
    (demo.patches / "unused.patch").write_text("x\n")
    (demo.tree / "beside.txt").write_text("beside\n")
    error = tool.refused(demo, "verify", code=1)
    for message in (
        "overlay/demo/own/deep/file.txt is locked but missing",
        "overlay/demo/own/extra.txt is not locked",
        "patches/demo/unused.patch is not locked",
        "beside.txt is not part of the tree",
    ):
        assert message in error


def test_lock_check_compares_only(demo: Demo, tool: Tool) -> None:
    before = (demo.root / "upstream.lock").read_bytes()
    assert tool.ok(demo, "lock", "--check").strip() == tool.ok(demo, "lock").strip()
    assert (demo.root / "upstream.lock").read_bytes() == before
    (demo.overlay / "own/deep/file.txt").write_bytes(b"new\n")
    error = tool.refused(demo, "lock", "--check", code=1)
    assert "overlay/demo/own/deep/file.txt differs" in error
    assert "patched tree is" in error
    assert (demo.root / "upstream.lock").read_bytes() == before
    tool.ok(demo, "lock")
    text = (demo.root / "upstream.lock").read_text()
    assert "# a comment that must survive" in text
    assert "# another comment" in text
    assert text != before.decode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "`format`"),
        ('kind = "git"', 'kind = "svn"', "upstream.demo.kind"),
        ('commit = "', 'commit = "x', "upstream.demo.commit"),
        ('version = "1.0"', "version = 1.0", "upstream.demo.version"),
        ('address = "', 'address = ""#', "upstream.demo.address"),
        ("[upstream.demo]", "[upstream.demo", "no TOML"),
        ("format = 1", "format = 1\nbad = \xff", "no TOML"),
        ("format = 1", "format = 1\nbad = " + "[" * 5000, "no TOML"),
        ("format = 1", "format = true", "`format`"),
        ('"\ndigest = "', '\\n"\ndigest = "', "upstream.demo.patched-tree"),
    ],
)
def test_malformed_lock_names_the_key(demo: Demo, tool: Tool, old: str, new: str, message: str) -> None:
    path = demo.root / "upstream.lock"
    path.write_bytes(path.read_text().replace(old, new, 1).encode("latin-1"))
    assert message in tool.refused(demo, "lock", "--check")


def test_commit_in_the_tree_is_not_the_locked_tree(demo: Demo, tool: Tool) -> None:
    demo.change(demo.edit("b.txt", b"two\n", b"2\n"), "Not exported")
    assert "locked is" in tool.refused(demo, "verify", code=1)
    assert git(demo.tree, "log", "-1", "--format=%s") == "Not exported", "verify changes nothing"


@pytest.mark.parametrize("verb", ["trees", "lint", "verify", "export"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:3] + bytes([text[3] ^ 0x80]) + text[4:], "is no UTF-8"),
        (lambda text: text.replace(b"\n", b"\r\n"), "has CRLF line ends"),
    ],
)
def test_series_that_is_no_text(
    damage: Callable[[bytes], bytes], message: str, verb: str, demo: Demo, tool: Tool
) -> None:
    path = demo.patches / "series"
    path.write_bytes(damage(path.read_bytes()))
    before = demo.snapshot()
    error = tool.refused(demo, verb, code=1 if verb == "verify" else 3)
    assert f"the series of `demo` {message}" in error
    assert demo.snapshot() == before


@pytest.mark.parametrize("verb", ["trees", "lint", "verify"])
def test_number_of_thousands_of_digits(verb: str, demo: Demo, tool: Tool) -> None:
    path = demo.patches / "five.patch"
    path.write_bytes(path.read_bytes().replace(b"@@ -5,0 ", b"@@ -" + b"9" * 5000 + b",0 "))
    assert "malformed hunk line" in tool.refused(demo, verb, code=3 if verb == "trees" else 1)
