# SPDX-License-Identifier: Apache-2.0
"""The pristine base of an upstream in the cache, from its public source or from a local one."""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts import cache, git, git_source, pip_sdist, sdist
from scripts.console import note
from scripts.errors import Exit, ToolError
from scripts.lockfile import Upstream
from scripts.locking import exclusive
from scripts.paths import Project


def ensure_base(project: Project, upstream: Upstream, *, recheck: bool = False) -> Path:
    """The cached repository with the base of `upstream`, fetched when it is not there yet.

    A local source given by the user is read when the cache lacks the base, and with `recheck` always, so that a wrong
    one is named even then. Raises ToolError; the cache is never left half-written.
    """
    final = cache.base_path(project, upstream)
    local = project.sources.get(upstream.name)
    if recheck and local is not None and final.exists():
        cache.check_tree(upstream, _tree_of_local(project, local, upstream), str(local))
    if final.exists():
        try:
            tree = cache.tree_of(final)
        except git.GitError:
            tree = ""
        if tree and tree == (upstream.base_tree or tree):
            return final
        if tree:
            raise ToolError(
                f"the lock's base-tree of `{upstream.name}` is {upstream.base_tree}, "
                f"its source at {upstream.pin} gave {tree}",
                where=str(project.lock),
                action=f"restore base-tree there (git checkout upstream.lock); only if {final} may have been changed, "
                "remove that folder and run `python -m scripts fetch`, which asks the source again",
            )
        raise ToolError(
            f"the cached base of `{upstream.name}` is damaged",
            where=str(final),
            action="remove that folder and run `python -m scripts fetch` again",
        )
    note(f"fetching {upstream.name} {upstream.version} from {local or upstream.address}")
    if local is not None:
        return cache.add_base(project, upstream, lambda repo: _from_local(repo, local, upstream))
    if upstream.kind == "sdist":
        archive, _ = pip_sdist.download(project, upstream.address, upstream.pin)
        return cache.add_base(project, upstream, lambda repo: sdist.import_archive(archive, repo))
    return cache.add_base(
        project,
        upstream,
        lambda repo: git_source.fetch_commit(repo, upstream.address, upstream.pin, upstream.ref),
    )


def _from_local(repo: Path, source: Path, upstream: Upstream) -> str:
    """Load a local archive, git repository or plain folder; returns its tree id."""
    if source.is_file():
        if upstream.kind == "sdist" and (actual := pip_sdist.file_sha256(source)) != upstream.pin:
            raise ToolError(
                f"the archive has sha256 {actual}, the lock wants {upstream.pin}",
                where=str(source),
                action=f"give the sdist of {upstream.address}",
            )
        return sdist.import_archive(source, repo)
    if not source.is_dir():
        state = "is neither a folder nor a file" if source.exists() else "does not exist"
        raise ToolError(
            f"the source given for `{upstream.name}` {state}",
            where=str(source),
            action="correct --source or its variable",
            code=Exit.UNREACHABLE,
        )
    if not (source / ".git").exists() and not (source / "HEAD").is_file():
        return sdist.import_folder(source, repo)
    address = source.as_uri()
    if upstream.kind == "git":
        return git_source.fetch_commit(repo, address, upstream.pin, upstream.ref)
    try:
        head = git.text(source, "rev-parse", "--verify", "HEAD")
    except git.GitError as exc:
        raise ToolError("the source has no commit", where=str(source), action="give another source") from exc
    return git_source.fetch_commit(repo, address, head)


def _tree_of_local(project: Project, source: Path, upstream: Upstream) -> str:
    scratch = project.cache / "base" / f".new-check-{upstream.name}"
    with cache.full_disk(project.cache), exclusive(scratch.with_name(f"check-{upstream.name}.lock")):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            git.init_bare(scratch)
            return _from_local(scratch, source, upstream)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
