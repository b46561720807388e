# SPDX-License-Identifier: Apache-2.0
"""The series on a newer pair (vllm-gaudi main at 091bbadd, vLLM 0.28.0), carried in memory and tested there.

    python -m gates.cpu.runner.newer_pair FOLDER [--vllm 0.28.0] [--plugin 091bbadda10b...] [-- words for pytest]

Writes both patched trees to FOLDER, then runs the guards of the runner series (or what the words name) on them, in
the serving environment. Nothing is accepted: lock and patches stay as they are. A patch of vllm-gaudi that is in
conflict ends the run unless `GONE` says why it is left out; patches of vLLM hook the chat front end, which the
runner does not use: one in conflict is named and left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gates.hpusim.pair import PLUGIN, VLLM
from scripts import cache, carrying, git, lockfile, paths, rebasing, runtime_path, stack, worktree
from scripts.applying import Commit, TreeState, apply_patch, overlay_commit
from scripts.errors import ToolError
from scripts.fetching import ensure_base
from scripts.stack import Patch

GONE = {
    "async-spurious-token": "upstream reads the field with a default",
    "messages-refusals": "its overlay imports a module of vLLM that has moved, and the server with it",
}
TESTS = "gates/cpu/runner"
# Guards of other parts whose patches change the runner or the scheduler.
OTHERS = ("gates/cpu/frontend/test_grammar_mask.py",)


@dataclass(frozen=True)
class Tree:
    """A patched tree of the newer pair: folder, version, and outcome per carried patch."""

    folder: Path
    version: str
    outcomes: dict[str, str]


def carry(name: str, to: str, folder: Path) -> Tree:
    """Write the tree of upstream `name` at `to` with every patch that is not in `GONE`, and the overlay.

    Raises:
        ToolError: a source is unreachable, or a patch needs a decision that `GONE` does not record.
    """
    project = paths.open_project(None, [])
    lock = lockfile.load(project)
    before = lock.get(name)
    after = rebasing.target(project, before, to)
    loaded = stack.load(project, name)
    old_repo, new_repo = ensure_base(project, before), ensure_base(project, after)
    outcomes: dict[str, str] = {}
    commits: list[Commit] = []
    with git.Objects(old_repo) as old_objects, git.Objects(new_repo) as new_objects:
        old = TreeState(git.ls_tree(old_repo, cache.BASE_REF), old_objects.read)
        new = TreeState(git.ls_tree(new_repo, cache.BASE_REF), new_objects.read)
        for patch in loaded.patches:
            row = carrying.carry(old, new, patch)
            outcomes[patch.name] = row.outcome
            if patch.name in GONE:
                outcomes[patch.name] = f"left out: {GONE[patch.name]}"
            elif row.outcome == carrying.CONFLICT:
                outcomes[patch.name] = f"left out, in conflict: {row.conflicts[0].why}"
                if name == "vllm-gaudi":
                    raise ToolError(
                        f"patch `{patch.name}` conflicts on {after.version}: {row.conflicts[0].why}",
                        where=str(project.patches(name)),
                        action="resolve it (`python -m scripts rebase`), or record in GONE why it is not needed",
                    )
            elif row.outcome != carrying.EMPTY:
                moved = Patch(patch.name, patch.header, tuple(row.changes), patch.data)
                commits.append(apply_patch(new, moved, str(project.root)))
            apply_patch(old, patch, str(project.root))
        if loaded.overlay:
            commits.append(overlay_commit(new, name, loaded.overlay, "2000-01-01", str(project.root)))
    tree = folder / name
    tree.mkdir(parents=True)
    worktree.write_tree(tree, new_repo, git.text(new_repo, "rev-parse", cache.BASE_REF), commits, "")
    version = f"{after.version}+empty" if name == "vllm" else after.version
    return Tree(tree, version, outcomes)


def environment(folder: Path, trees: dict[str, Tree]) -> dict[str, str]:
    """Environment of a process that runs on `trees` instead of the installed wheels."""
    path = runtime_path.assemble(folder / "path", {name: (tree.folder, tree.version) for name, tree in trees.items()})
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **{f"FRONTIER_TREE_{name.upper().replace('-', '_')}": str(tree.folder) for name, tree in trees.items()},
        "PYTHONPATH": f"{path}{os.pathsep}{inherited}" if inherited else str(path),
    }


def lay(folder: Path, targets: dict[str, str]) -> dict[str, str]:
    """Carry both upstreams into `folder`, print what became of every patch, and return the environment."""
    trees = {name: carry(name, to, folder) for name, to in targets.items()}
    for name, tree in trees.items():
        for patch, outcome in tree.outcomes.items():
            print(f"{name}/{patch} {outcome}")
    return environment(folder, trees)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.cpu.runner.newer_pair", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="new folder for both trees")
    parser.add_argument("--vllm", default=VLLM, help="release of vLLM")
    parser.add_argument("--plugin", default=PLUGIN, help="tag, branch or commit of vllm-gaudi")
    parser.add_argument("words", nargs="*", help="for pytest; default: the guards that start no engine")
    options = parser.parse_args(words)
    try:
        environ = lay(options.folder.absolute(), {"vllm": options.vllm, "vllm-gaudi": options.plugin})
    except (ToolError, FileExistsError) as error:
        print(f"newer pair: {error}", file=sys.stderr)
        return 1
    chosen = options.words or [TESTS, *OTHERS, "-m", "not long and not engine"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
