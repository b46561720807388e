# SPDX-License-Identifier: Apache-2.0
"""A small project with a small upstream, and builds of the tool to run on it: the real one, or one made worse."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from scripts.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
SUBMODULE = "1" * 40
FIELDS = """\
Description: why
Origin: vendor
Forwarded: no
Last-Update: 2026-01-02
Removal: never
Guard: gates/test_demo.py::test_x
"""
LOCK = """\
# a comment that must survive
format = 1
lock-hash = ""

[upstream.demo]
# another comment
kind = "git"
address = "{address}"
ref = "main"
version = "1.0"
commit = "{commit}"
base-tree = ""
patched-tree = ""
digest = ""

[upstream.demo.files]
"""
FILES: dict[str, bytes] = {
    "a.txt": b"".join(b"line %d\n" % n for n in range(1, 31)),
    "b.txt": b"one\ntwo\nthree\n",
    "no_newline.txt": b"first\nlast",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "latin1.txt": b"caf\xe9\nth\xe9\n",
    "nul.bin": b"a\0b\nc\0d\n",
    "pkg/mod.py": b"def f(x):\n    return x\n\n\ndef g(y):\n    return y\n",
    "demo/__init__.py": b"",
    "demo/api.py": b"def call(a, b=1):\n    return a\n\n\nclass Base:\n    def run(self, x):\n        return x\n",
    ".gitattributes": b"*.txt text eol=crlf ident\n*.bin binary\n*.py diff=python\n",
}


@dataclass(frozen=True)
class Result:
    """Exit code and output of one call of the tool."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Tool:
    """One build of the tool: the folder that holds its `scripts` package."""

    folder: Path = ROOT

    def command(self, demo: Demo, *words: str) -> list[str]:
        return [sys.executable, "-m", "scripts", words[0], "--root", str(demo.root), *words[1:]]

    def environment(self, demo: Demo) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_GAUDI_FRONTIER", "FRONTIER"))}
        cache = {"VLLM_GAUDI_FRONTIER_CACHE": str(demo.cache), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **cache, **demo.env}

    def run(self, demo: Demo, *words: str) -> Result:
        """Run one verb: the tool itself in this process, which is quicker, any other build in one of its own."""
        if self.folder == ROOT:
            return _run_here(self.command(demo, *words)[3:], self.environment(demo))
        done = subprocess.run(
            self.command(demo, *words),
            cwd=self.folder,
            env=self.environment(demo),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def ok(self, demo: Demo, *words: str) -> str:
        """Run and demand exit code 0; returns stdout."""
        result = self.run(demo, *words)
        assert result.code == 0, f"{words}: exit {result.code}\n{result.err}"
        return result.out

    def refused(self, demo: Demo, *words: str, code: int = 3) -> str:
        """Run and demand an error of the tool's own, with place and next action; returns stderr."""
        result = self.run(demo, *words)
        assert result.code == code, f"{words}: exit {result.code}, not {code}\n{result.out}{result.err}"
        assert "Traceback" not in result.err, result.err
        return result.err


def _run_here(words: list[str], env: dict[str, str]) -> Result:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, folder = dict(os.environ), os.getcwd()
    try:
        os.environ.clear()
        os.environ.update(env)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as exc:
                code = int(exc.code or 0)
            except Exception:
                traceback.print_exc()
                code = 1
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert os.getcwd() == folder
    texts = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Result(code, *texts)


def weakened(folder: Path, *edits: tuple[str, str, str]) -> Tool:
    """A build of the tool in `folder` with each (module, text, other text) edit made in its source."""
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for module, old, new in edits:
        path = folder / "scripts" / module
        source = path.read_text(encoding="utf-8")
        if source.count(old) != 1:  # no AssertionError, which a control would take for the failure that it looks for
            raise ValueError(f"{module} holds {source.count(old)} times {old!r}")
        path.write_text(source.replace(old, new), encoding="utf-8")
    return Tool(folder)


def git(folder: Path, *words: str, stdin: bytes | None = None) -> str:
    """git with an empty configuration; returns stdout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    who = {"NAME": "T", "EMAIL": "t@invalid", "DATE": "2026-01-02T00:00:00Z"}
    env.update({f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()})
    done = subprocess.run(["git", "-C", str(folder), *words], env=env, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, f"git {words}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode("utf-8", "surrogateescape").strip()


@dataclass
class Demo:
    """One project folder with its cache and its upstream repository. `env` is added to the environment of the tool."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "project"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def upstream(self) -> Path:
        return self.folder / "upstream"

    @property
    def tree(self) -> Path:
        return self.root / "build/trees/demo"

    @property
    def patches(self) -> Path:
        return self.root / "patches/demo"

    @property
    def overlay(self) -> Path:
        return self.root / "overlay/demo"

    def create(self) -> None:
        """Write upstream, project and lock."""
        self.upstream.mkdir(parents=True)
        git(self.upstream, "init", "-q", "-b", "main")
        for name, content in FILES.items():
            write(self.upstream / name, content)
        script = self.upstream / "run.sh"
        script.write_bytes(b"#!/bin/sh\necho hello\n")
        script.chmod(0o755)
        (self.upstream / "link").symlink_to("a.txt")
        self.commit_upstream("release 1.0", f"160000 {SUBMODULE}\tsub")
        self.patches.mkdir(parents=True)
        (self.patches / "series").write_text("")
        write(self.root / "gates/test_demo.py", b"def test_x():\n    pass\n")
        lock = LOCK.format(address=self.upstream, commit=git(self.upstream, "rev-parse", "HEAD"))
        (self.root / "upstream.lock").write_text(lock)

    def commit_upstream(self, message: str, *index_lines: str) -> str:
        """Commit upstream's working tree byte for byte, plus raw index entries; returns the commit."""
        write(self.upstream / ".git/info/attributes", b"* -text -ident -filter\n")
        git(self.upstream, "add", "-A")
        if index_lines:
            git(self.upstream, "update-index", "--index-info", stdin="\n".join(index_lines).encode() + b"\n")
        git(self.upstream, "commit", "-q", "-m", message)
        return git(self.upstream, "rev-parse", "HEAD")

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the project outside build/, with mode and content."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if name.split("/")[0] == "build" or (path.is_dir() and not path.is_symlink()):
                continue
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            found[name] = b"%o " % path.lstat().st_mode + content
        return found

    def files(self) -> dict[bytes, bytes]:
        """Every file of the built tree, with mode and content."""
        top = os.fsencode(self.tree)
        found = {}
        for base, folders, names in os.walk(top):
            folders[:] = [f for f in folders if f != b".git"]
            for name in names + [f for f in folders if os.path.islink(os.path.join(base, f))]:
                full = os.path.join(base, name)
                mode = b"%o " % os.lstat(full).st_mode
                content = os.readlink(full) if os.path.islink(full) else Path(os.fsdecode(full)).read_bytes()
                found[os.path.relpath(full, top)] = mode + content
        return found

    def change(
        self, edits: dict[str | bytes, bytes | None], subject: str, name: str = "", fields: str = FIELDS
    ) -> None:
        """Commit edits in the built tree (None removes), with a full header."""
        for path, content in edits.items():
            full = Path(os.fsdecode(os.path.join(os.fsencode(self.tree), os.fsencode(path))))
            if content is None:
                full.unlink()
            else:
                write(full, content)
        git(self.tree, "add", "-A", "-f", ".")
        named = f"\nPatch-Name: {name}\n" if name else ""
        git(self.tree, "commit", "-q", "-m", f"{subject}\n\n{fields}{named}")

    def edit(self, path: str, old: bytes, new: bytes) -> dict[str | bytes, bytes | None]:
        """An edit for :meth:`change`: the file in the tree with `old` replaced once."""
        content = (self.tree / path).read_bytes()
        assert content.count(old) == 1
        return {path: content.replace(old, new)}


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def patched(demo: Demo, tool: Tool) -> None:
    """Give a new demo three patches and an overlay with two files, exported and locked."""
    tool.ok(demo, "lock")
    tool.ok(demo, "trees")
    demo.change(demo.edit("a.txt", b"line 5\n", b"line 5\nhook 5\n"), "Insert after five", "five")
    demo.change(demo.edit("a.txt", b"line 20\n", b"line twenty\n"), "Change twenty", "twenty")
    demo.change(demo.edit("pkg/mod.py", b"    return x\n", b"    log(x)\n    return x\n"), "Log in f", "log")
    demo.change({"pkg/ours.py": b"def log(x):\n    pass\n", "own/deep/file.txt": b"ours\n"}, "New files")
    tool.ok(demo, "export")
    tool.ok(demo, "lock")
