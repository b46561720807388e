# SPDX-License-Identifier: Apache-2.0
"""git, called so that nothing of the developer's configuration reaches the result."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from scripts.errors import Exit, ToolError

# Set on the command line too: the repository's own configuration would otherwise win over the empty global one.
_HERMETIC = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.eol=lf",
    "core.safecrlf=false",
    "core.quotePath=true",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.ignoreCase=false",
    "core.precomposeUnicode=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "safe.directory=*",
    "diff.external=",
    "diff.ignoreSubmodules=none",
    "diff.orderFile=/dev/null",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.relative=false",
    "log.showSignature=false",
    "core.bigFileThreshold=512m",
    "core.abbrev=auto",
    "advice.detachedHead=false",
)
_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX",
               "GIT_NAMESPACE", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CEILING_DIRECTORIES")  # fmt: skip


_DISK = (
    "No space left on device",
    "Out of diskspace",
    "unable to write file",
    "Disk quota exceeded",
    "File too large",
    "Read-only file system",
)


class GitError(Exception):
    """git ended with an error: what it said, what it had written by then, and `where`, the repository it ran on."""

    def __init__(
        self, args: Sequence[str], code: int, stderr: str, stdout: bytes = b"", where: Path | None = None
    ) -> None:
        super().__init__(f"git {' '.join(args[:3])} ended with {code}: {stderr.strip()}")
        self.code = code
        self.stderr = stderr.strip()
        self.stdout = stdout
        self.where = where

    @property
    def disk(self) -> str | None:
        """What the disk refused, in git's words, when that is why git failed."""
        if self.code == -signal.SIGXFSZ:
            return "File too large"
        return next((sign for sign in _DISK if sign in self.stderr), None)


def environment(user_config: bool) -> dict[str, str]:
    """Environment for git: the user's own for talking to servers, an empty one for everything else."""
    env = {k: v for k, v in os.environ.items() if k not in _REPOSITORY}
    if not user_config:
        env = {k: v for k, v in env.items() if not k.startswith("GIT_")}
        env.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_SYSTEM=os.devnull, GIT_CONFIG_NOSYSTEM="1")
        env.update(GIT_ATTR_NOSYSTEM="1", GIT_NO_REPLACE_OBJECTS="1")
        env.update(HOME=os.devnull, XDG_CONFIG_HOME=os.devnull)  # git before 2.32 knows no GIT_CONFIG_GLOBAL
    env.update(LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT=env.get("GIT_TERMINAL_PROMPT", "0"))
    return env


def command(repo: Path | None, args: Sequence[str], user_config: bool = False) -> list[str]:
    """The argument vector of one git call."""
    words = ["git"]
    if not user_config:
        for setting in _HERMETIC:
            words += ["-c", setting]
    if repo is not None:
        inner = repo / ".git"
        if inner.exists():
            words += ["--git-dir", str(inner), "--work-tree", str(repo)]
        else:
            words += ["--git-dir", str(repo)]
    return [*words, *args]


def run(
    repo: Path | None,
    *args: str,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    user_config: bool = False,
    progress: bool = False,
) -> bytes:
    """Run git on `repo` (its folder, or a bare repository) and return stdout.

    Raises:
        GitError: when git fails.
        ToolError: when git itself is missing.
    """
    full = environment(user_config)
    full.update(env or {})
    try:
        done = subprocess.run(
            command(repo, args, user_config),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=subprocess.PIPE,
            stderr=None if progress else subprocess.PIPE,
            env=full,
            cwd=repo if repo is not None and repo.is_dir() else None,
            # A git killed while it moves a branch leaves its lock behind, which stops the next run: it must outlive a
            # signal to this process's group.
            start_new_session=args[:1] == ("update-ref",),
            check=False,
        )
    except FileNotFoundError as exc:
        raise ToolError("git is not installed", where="PATH", action="install git 2.30 or newer") from exc
    if done.returncode:
        raise GitError(args, done.returncode, (done.stderr or b"").decode("utf-8", "replace"), done.stdout, repo)
    return done.stdout


def text(repo: Path | None, *args: str) -> str:
    """First-class text answers: ids, ref names."""
    return run(repo, *args).decode("utf-8", "surrogateescape").strip()


def blob_id(content: bytes) -> str:
    """git's object id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def init_bare(path: Path) -> None:
    """An empty bare repository without the user's template."""
    run(None, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(path))


class Objects:
    """Reads blobs of one repository through a single `git cat-file --batch`. Use as a context manager."""

    def __init__(self, repo: Path) -> None:
        self._repo = repo
        self._process = subprocess.Popen(
            command(repo, ["cat-file", "--batch"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(False),
        )

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def read(self, name: str) -> bytes:
        """Content of the object `name`. Raises ToolError when the repository does not hold it whole."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(name.encode() + b"\n")
            self._process.stdin.flush()
            head = self._process.stdout.readline().split()
        except BrokenPipeError:
            head = []
        if len(head) == 3:
            body = self._process.stdout.read(int(head[2]))
            if self._process.stdout.read(1) == b"\n" and len(body) == int(head[2]):
                return body
        raise ToolError(
            f"object {name} is missing or damaged",
            where=str(self._repo),
            action="remove that folder and run `python -m scripts fetch` again",
            code=Exit.BAD_INPUT,
        )


def ls_tree(repo: Path, treeish: str) -> dict[bytes, tuple[str, str]]:
    """Every file of `treeish`: path -> (mode, object id). Submodules appear with mode 160000."""
    entries = {}
    for record in run(repo, "ls-tree", "-r", "-z", "--full-tree", treeish).split(b"\0"):
        if record:
            meta, _, path = record.partition(b"\t")
            mode, _, name = meta.decode().split()
            entries[path] = (mode, name)
    return entries
