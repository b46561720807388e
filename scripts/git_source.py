# SPDX-License-Identifier: Apache-2.0
"""Get one commit of a git source, shallow where the server allows it, and find what a name stands for."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from scripts import console, git
from scripts.errors import Exit, ToolError

_FULL = re.compile(r"^[0-9a-f]{40}$")
_SHORT = re.compile(r"^[0-9a-f]{7,39}$")


def fetch_commit(repo: Path, address: str, commit: str, ref: str = "") -> str:
    """Bring `commit` into the bare repository `repo`; returns its tree id.

    Tries the commit alone, then the named ref, then everything: not every server hands out a commit by id.
    """
    attempts = [["--depth=1", address, commit]]
    if ref:
        attempts.append([address, ref])
    attempts.append([address, "+refs/heads/*:refs/fetched/heads/*", "+refs/tags/*:refs/fetched/tags/*"])
    complaint = ""
    for words in attempts:
        try:
            _fetch(repo, words)
            return git.text(repo, "rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
        except git.GitError as exc:
            if exc.disk:
                raise
            complaint = complaint or exc.stderr
    raise ToolError(
        f"cannot get commit {commit}: {_last(complaint)}",
        where=address,
        action="check network and proxy, or give a local repository with --source NAME=PATH",
        code=Exit.UNREACHABLE,
    )


def resolve(address: str, name: str) -> tuple[str, str]:
    """What TAG, BRANCH or COMMIT `name` stands for at `address`: (40-digit commit, ref or empty)."""
    if _FULL.match(name):
        return name, ""
    try:
        listing = git.run(None, "ls-remote", address, user_config=True).decode("utf-8", "replace")
    except git.GitError as exc:
        raise ToolError(
            f"cannot list the names of the source: {_last(exc.stderr)}",
            where=address,
            action="check network and proxy, or give a local repository with --source NAME=PATH",
            code=Exit.UNREACHABLE,
        ) from exc
    refs = {ref: commit for commit, _, ref in (line.partition("\t") for line in listing.splitlines())}
    for candidate in (f"refs/tags/{name}^{{}}", f"refs/tags/{name}", f"refs/heads/{name}"):
        if candidate in refs:
            return refs[candidate], candidate.removesuffix("^{}").split("/", 2)[2]
    if _SHORT.match(name):
        tips = {(commit, ref) for ref, commit in refs.items() if commit.startswith(name) and ref != "HEAD"}
        if len({commit for commit, _ in tips}) == 1:
            branches = [ref.split("/", 2)[2] for _, ref in sorted(tips) if ref.startswith("refs/heads/")]
            return next(iter(tips))[0], branches[0] if branches else ""
        return _resolve_short(address, name), ""
    raise ToolError(
        f"the source has no tag, branch or commit `{name}`",
        where=address,
        action="list its names with `git ls-remote`, or give a full 40-digit commit",
    )


def _resolve_short(address: str, name: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        repo = Path(scratch)
        git.init_bare(repo)
        try:
            _fetch(repo, ["--filter=tree:0", address, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"])
            return git.text(repo, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except git.GitError as exc:
            raise ToolError(
                f"`{name}` names no commit of the source, or more than one",
                where=address,
                action="give the full 40-digit commit",
            ) from exc


def _fetch(repo: Path, words: list[str]) -> None:
    show = console.interactive()
    flags = ["--progress"] if show else ["--quiet"]
    settings = ["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "safe.directory=*"]
    git.run(
        repo,
        *settings,
        "fetch",
        *flags,
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
        *words,
        user_config=True,
        progress=show,
    )


def _last(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith(("fatal:", "ERROR:"))]  # hints may follow the reason
    return (reasons or lines or ["git gave no reason"])[-1]
