# SPDX-License-Identifier: Apache-2.0
"""The user cache: one immutable bare repository per pinned base, put in place whole.

<cache>/base/<upstream>-<pin>.git     holds refs/heads/base, one deterministic commit
<cache>/sdist/<sha256>/<file>         archives as published
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from scripts import disk, git
from scripts.errors import ToolError
from scripts.lockfile import Upstream
from scripts.locking import exclusive
from scripts.paths import Project

BASE_REF = "refs/heads/base"
# The base commit is the same wherever and from whatever it is made: no clock, no user in it.
_DATE = "946684800 +0000"


def base_path(project: Project, upstream: Upstream) -> Path:
    """Where the base of `upstream` lies in the cache."""
    return project.cache / "base" / f"{upstream.name}-{upstream.pin}.git"


def base_commit(repo: Path, upstream: Upstream, tree: str) -> str:
    """Write the deterministic base commit of `tree` in `repo` and return its id."""
    env = {}
    for who in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{who}_NAME": "upstream", f"GIT_{who}_EMAIL": "upstream@invalid", f"GIT_{who}_DATE": _DATE})
    message = f"{upstream.name} {upstream.version} as published\n\nSource: {upstream.address}\nPin: {upstream.pin}\n"
    done = git.run(repo, "commit-tree", tree, stdin=message.encode(), env=env)
    return done.decode().strip()


def tree_of(repo: Path) -> str:
    """Tree id of the base in a cached repository."""
    return git.text(repo, "rev-parse", "--verify", "--quiet", f"{BASE_REF}^{{tree}}")


def full_disk(where: Path) -> AbstractContextManager[None]:
    """Turn 'no space left' and refusals of the file system into the tool's error."""
    action = "free space or choose another folder with VLLM_GAUDI_FRONTIER_CACHE; what was cached is unharmed"
    return disk.written("the cache", where, action)


def add_base(project: Project, upstream: Upstream, fill: Callable[[Path], str]) -> Path:
    """Make the cached base: `fill` puts objects in a scratch bare repository and returns the tree id.

    The scratch repository takes its final place only when its tree is the one the lock names.
    """
    final = base_path(project, upstream)
    with full_disk(project.cache), exclusive(final.with_suffix(".lock")):
        if final.exists():
            return final
        for left in final.parent.glob(f".new-{final.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".new-{final.name}-", dir=final.parent))
        try:
            git.init_bare(scratch)
            tree = fill(scratch)
            check_tree(upstream, tree, str(project.sources.get(upstream.name, upstream.address)))
            git.run(scratch, "update-ref", BASE_REF, base_commit(scratch, upstream, tree))
            os.rename(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def check_tree(upstream: Upstream, tree: str, where: str) -> None:
    """Refuse a source whose tree is not the locked base."""
    if upstream.base_tree and tree != upstream.base_tree:
        raise ToolError(
            f"`{upstream.name}` from this source has tree {tree}, the lock wants {upstream.base_tree}",
            where=where,
            action=f"give a source of {upstream.name} {upstream.version} at {upstream.pin}",
        )
