# SPDX-License-Identifier: Apache-2.0
"""Sources: public and local ones, damaged ones, unreachable ones; the cache stays whole through all of it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from gates.build.demo import Demo, Tool, git
from gates.build.sdists import digest, make_sdist_demo, sdist
from scripts.cache import full_disk
from scripts.errors import ToolError
from scripts.git import GitError
from scripts.locking import exclusive


def cached(demo: Demo) -> list[str]:
    """Finished entries of the cache."""
    return sorted(p.name for p in (demo.cache / "base").glob("*.git")) if demo.cache.exists() else []


def leftovers(demo: Demo) -> list[str]:
    """Half-made entries of the cache."""
    return sorted(p.name for p in demo.cache.rglob(".new-*"))


def test_offline_once_cached(bare: Demo, tool: Tool) -> None:
    tool.ok(bare, "fetch")
    shutil.rmtree(bare.upstream)
    tool.ok(bare, "lock")
    tool.ok(bare, "trees")


def test_fetch_is_shallow(bare: Demo, tool: Tool) -> None:
    git(bare.upstream, "commit", "-q", "--allow-empty", "-m", "later")
    commit = git(bare.upstream, "rev-parse", "HEAD")
    lock = bare.root / "upstream.lock"
    old = lock.read_text().split('commit = "')[1][:40]
    lock.write_text(lock.read_text().replace(old, commit).replace('address = "/', 'address = "file:///'))
    tool.ok(bare, "fetch")
    repo = next((bare.cache / "base").glob("*.git"))
    found = subprocess.run(["git", "-C", str(repo), "cat-file", "-e", old], capture_output=True, check=False)
    assert found.returncode != 0, "the history before the pin was not fetched"


def test_server_that_refuses_single_commits(bare: Demo, tool: Tool) -> None:
    git(bare.upstream, "commit", "-q", "--allow-empty", "-m", "later")
    git(bare.upstream, "config", "uploadpack.allowAnySHA1InWant", "false")
    bare.env["GIT_CONFIG_COUNT"] = "1"
    bare.env["GIT_CONFIG_KEY_0"] = "protocol.version"
    bare.env["GIT_CONFIG_VALUE_0"] = "0"
    tool.ok(bare, "lock")


def local_sources(demo: Demo) -> dict[str, Path]:
    """The same upstream as a checkout, a bare clone, a plain folder and an archive."""
    clone = demo.folder / "clone.git"
    git(demo.folder, "clone", "-q", "--bare", str(demo.upstream), str(clone))
    plain = demo.folder / "plain"
    shutil.copytree(demo.upstream, plain, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    archive = demo.folder / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(plain, "demo-1.0")
    return {"checkout": demo.upstream, "bare": clone, "folder": plain, "archive": archive}


@pytest.mark.parametrize("kind", ["checkout", "bare"])
def test_local_git_source(bare: Demo, tool: Tool, kind: str) -> None:
    tool.ok(bare, "lock")
    shutil.rmtree(bare.cache)
    source = local_sources(bare)[kind]
    moved = bare.folder / "moved"
    shutil.copytree(source, moved, symlinks=True)
    shutil.rmtree(bare.upstream)
    assert tool.run(bare, "fetch").code == 4, "control: without the local source it cannot be had"
    tool.ok(bare, "fetch", "--source", f"demo={moved}")
    tool.ok(bare, "trees")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_local_files_are_held_to_the_base_tree(bare: Demo, tool: Tool, kind: str) -> None:
    source = local_sources(bare)[kind]
    git(bare.upstream, "rm", "-q", "--cached", "sub")
    git(bare.upstream, "commit", "-q", "-m", "without submodule")
    lock = bare.root / "upstream.lock"
    lock.write_text(
        lock.read_text().replace(lock.read_text().split('commit = "')[1][:40], git(bare.upstream, "rev-parse", "HEAD"))
    )
    tool.ok(bare, "lock")
    shutil.rmtree(bare.cache)
    bare.env["VLLM_GAUDI_FRONTIER_SOURCE_DEMO"] = str(source)
    tool.ok(bare, "fetch")
    tool.ok(bare, "verify")
    shutil.rmtree(bare.cache)
    other = bare.folder / "other"
    shutil.copytree(bare.folder / "plain", other, symlinks=True)
    (other / "a.txt").write_bytes(b"other\n")
    error = tool.refused(bare, "fetch", "--source", f"demo={other}")
    assert "the lock wants" in error
    assert str(other) in error
    assert not cached(bare)
    assert not leftovers(bare)


def test_wrong_local_source_is_named_even_when_cached(bare: Demo, tool: Tool) -> None:
    tool.ok(bare, "lock")
    other = bare.folder / "other"
    other.mkdir()
    (other / "a.txt").write_text("x\n")
    assert "the lock wants" in tool.refused(bare, "fetch", "--source", f"demo={other}")
    assert "does not exist" in tool.refused(bare, "fetch", "--source", "demo=/nonexistent", code=4)
    assert "NAME=PATH" in tool.refused(bare, "fetch", "--source", "demo", code=2)
    tool.ok(bare, "fetch")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_source_for_what_is_no_upstream(how: str, bare: Demo, tool: Tool) -> None:
    """A misspelt name must not leave the public source in use without a word."""
    words = ["--source", f"dmeo={bare.upstream}"] if how == "option" else []
    if how == "variable":
        bare.env["VLLM_GAUDI_FRONTIER_SOURCE_DMEO"] = str(bare.upstream)
    error = tool.refused(bare, "fetch", *words, code=2)
    assert "`dmeo`, which is no upstream" in error
    assert "use one of: demo" in error
    assert not bare.cache.exists()


@pytest.mark.parametrize("address", ["/nonexistent/repository", "https://localhost:1/x", "file:///nonexistent"])
def test_unreachable_git_source(bare: Demo, tool: Tool, address: str) -> None:
    lock = bare.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(str(bare.upstream), address))
    error = tool.refused(bare, "fetch", code=4)
    assert address in error
    assert "fatal: " in error.splitlines()[1], "git's reason, not the hints after it"
    assert "--source" in error
    assert not cached(bare)
    assert not leftovers(bare)


def test_commit_that_the_source_lacks(bare: Demo, tool: Tool) -> None:
    lock = bare.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(lock.read_text().split('commit = "')[1][:40], "a" * 40))
    assert "a" * 40 in tool.refused(bare, "fetch", code=4)
    assert not leftovers(bare)


def test_sdist_through_pip(tmp_path: Path, tool: Tool) -> None:
    """pip is the client, obeys its own settings, executes nothing of the archive and needs no build requirement."""
    demo, archive = make_sdist_demo(tmp_path, extra={"run.sh": b"#!/bin/sh\n"})
    tool.ok(demo, "lock")
    shutil.rmtree(demo.folder / "index")
    tool.ok(demo, "trees")
    assert (demo.tree / "setup.py").read_bytes().startswith(b"raise")
    assert os.access(demo.tree / "run.sh", os.X_OK)
    kept = next(demo.cache.glob("sdist/*/*"))
    assert kept.name == archive.name
    tool.ok(demo, "verify")


def test_sdist_that_the_index_lacks(tmp_path: Path, tool: Tool) -> None:
    demo, archive = make_sdist_demo(tmp_path)
    archive.unlink()
    error = tool.refused(demo, "fetch", code=4)
    assert "demo==1.0" in error
    assert not cached(demo)


def test_sdist_with_another_hash(tmp_path: Path, tool: Tool) -> None:
    demo, archive = make_sdist_demo(tmp_path)
    wanted = digest(archive)
    sdist(archive.parent, "1.0", {"demo/code.py": b"evil = True\n"})
    error = tool.refused(demo, "fetch")
    assert "another file than the lock wants" in error
    assert digest(archive) in error
    assert wanted != digest(archive)
    assert not cached(demo)
    assert not list(demo.cache.glob("sdist/*/*"))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("demo-1.0/../../outside"),
        member("/etc/outside"),
        member("demo-1.0/.git/config"),
        member("demo-1.0/x/.GIT/config"),
        member("other-1.0/file"),
        member("loose"),
        member("demo-1.0/link", tarfile.SYMTYPE, "../../outside"),
        member("demo-1.0/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("demo-1.0/fifo", tarfile.FIFOTYPE),
        member("demo-1.0/device", tarfile.CHRTYPE),
    ],
    ids=lambda info: f"{info.name}{'-' + info.linkname if info.linkname else ''}".replace("/", "_"),
)
def test_archive_member_that_leaves_the_folder(tmp_path: Path, tool: Tool, bad: tarfile.TarInfo) -> None:
    demo, archive = make_sdist_demo(tmp_path, members=[bad])
    error = tool.refused(demo, "fetch", "--source", f"demo={archive}")
    assert "archive refused" in error
    assert not cached(demo)
    assert not leftovers(demo)
    assert not (demo.folder / "outside").exists()


def test_truncated_archive(tmp_path: Path, tool: Tool) -> None:
    demo, archive = make_sdist_demo(tmp_path, extra={"demo/big.py": os.urandom(100_000)})
    archive.write_bytes(archive.read_bytes()[:60_000])
    lock = demo.root / "upstream.lock"
    lock.write_text(lock.read_text().replace(lock.read_text().split('sha256 = "')[1][:64], digest(archive)))
    assert "truncated or damaged" in tool.refused(demo, "fetch", "--source", f"demo={archive}")
    assert not cached(demo)
    assert not leftovers(demo)


def limited(demo: Demo, tool: Tool, size: int, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the tool so that no file can grow over `size` bytes: what a full disk looks like to it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(
        tool.command(demo, *words),
        cwd=tool.folder,
        env=tool.environment(demo),
        capture_output=True,
        preexec_fn=limit,
        check=False,
    )


def test_disk_full_leaves_the_cache_unharmed(tmp_path: Path, tool: Tool) -> None:
    demo, _ = make_sdist_demo(tmp_path, extra={"demo/big.bin": os.urandom(400_000)})
    tool.ok(demo, "fetch")
    repo = next((demo.cache / "base").glob("*.git"))
    shutil.rmtree(repo)  # the archive stays: importing it is what has no room
    done = limited(demo, tool, 100_000, "fetch")
    assert done.returncode == 3, done.stderr.decode()
    assert b"cannot write the cache" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not cached(demo)
    assert not leftovers(demo)
    tool.ok(demo, "fetch")


@pytest.mark.parametrize(
    "said", ["fatal: write error: No space left on device", "write error. Out of diskspace", "Disk quota exceeded"]
)
def test_git_on_a_full_disk(tmp_path: Path, said: str) -> None:
    with pytest.raises(ToolError, match="cannot write the cache") as caught, full_disk(tmp_path):
        raise GitError(["fetch"], 128, f"remote: x\n{said}\nfatal: index-pack failed")
    assert caught.value.where == str(tmp_path)
    with pytest.raises(GitError), full_disk(tmp_path):
        raise GitError(["fetch"], 128, "fatal: not found")


def test_unwritable_cache(bare: Demo, tool: Tool) -> None:
    bare.cache.write_text("a file, not a folder\n")
    assert "cannot write the cache" in tool.refused(bare, "fetch")


def test_two_runs_at_once(tmp_path: Path, tool: Tool) -> None:
    """Both succeed, one does the work, the other waits and says so."""
    demo, _ = make_sdist_demo(tmp_path, extra={f"demo/m{n}.py": os.urandom(3000) for n in range(300)})
    pair = [
        subprocess.Popen(
            tool.command(demo, "fetch"),
            cwd=tool.folder,
            env=tool.environment(demo),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    said = [p.communicate(timeout=120)[1] for p in pair]
    assert [p.returncode for p in pair] == [0, 0, 0], said
    assert any(b"waiting for another run" in text for text in said)
    assert len(cached(demo)) == 1
    assert not leftovers(demo)


def test_local_source_is_checked_by_one_run_at_a_time(bare: Demo, tool: Tool) -> None:
    """Two runs that read a local source share a scratch folder: the second one waits."""
    tool.ok(bare, "lock")
    command = tool.command(bare, "fetch", "--source", f"demo={bare.upstream}")
    with exclusive(bare.cache / "base/check-demo.lock"):
        run = subprocess.Popen(command, cwd=tool.folder, env=tool.environment(bare), stderr=subprocess.PIPE)
        assert run.stderr is not None
        assert b"waiting for another run" in run.stderr.readline()
    assert run.communicate(timeout=60)[1] == b""
    assert run.returncode == 0
    assert not leftovers(bare)


@pytest.mark.parametrize("place", ["cache", "source"])
def test_home_folder_that_does_not_exist(place: str, bare: Demo, tool: Tool) -> None:
    path = "~no-such-user-here/x"
    words = ["--source", f"demo={path}"] if place == "source" else []
    if place == "cache":
        bare.env["VLLM_GAUDI_FRONTIER_CACHE"] = path
    error = tool.refused(bare, "fetch", *words)
    assert f"`{path}` lies in a home folder that does not exist" in error
    assert "full path" in error


def test_damaged_cache_entry_is_named(bare: Demo, tool: Tool) -> None:
    tool.ok(bare, "lock")
    repo = next((bare.cache / "base").glob("*.git"))
    (repo / "refs/heads/base").unlink(missing_ok=True)
    (repo / "packed-refs").unlink(missing_ok=True)
    error = tool.refused(bare, "trees")
    assert str(repo) in error
    assert "remove" in error
    shutil.rmtree(repo)
    tool.ok(bare, "trees")


def test_changed_base_tree_is_told_from_a_damaged_cache(demo: Demo, tool: Tool) -> None:
    lock = demo.root / "upstream.lock"
    text = lock.read_text()
    tree = text.split('base-tree = "')[1][:40]
    lock.write_text(text.replace(tree, "1" * 40))
    for verb, code in (("trees", 3), ("lock", 3), ("verify", 1)):
        error = tool.refused(demo, verb, code=code)
        assert f"the lock's base-tree of `demo` is {'1' * 40}" in error, verb
        assert tree in error
        assert "damaged" not in error
        assert str(lock) in error
    lock.write_text(text)
    tool.ok(demo, "verify")


def test_source_that_is_no_file(bare: Demo, tool: Tool) -> None:
    assert "neither a folder nor a file" in tool.refused(bare, "fetch", "--source", "demo=/dev/null", code=4)
    assert "does not exist" in tool.refused(bare, "fetch", "--source", "demo=/nonexistent/x", code=4)
