# SPDX-License-Identifier: Apache-2.0
"""A folder for PYTHONPATH that puts trees in the place of installed wheels, entry points included."""

from __future__ import annotations

import ast
import os
from pathlib import Path

# setuptools writes these at build time; a tree has to bring them along for its package to know its version.
_INFO = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def assemble(folder: Path, trees: dict[str, tuple[Path, str]]) -> Path:
    """Fill `folder` with links to the package of each tree and metadata with its entry points.

    Args:
        folder: an empty or new folder.
        trees: upstream name -> (tree, version).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, (tree, version) in trees.items():
        package = name.replace("-", "_")
        if not (tree / package).is_dir():
            continue
        os.symlink(tree.absolute() / package, folder / package)
        info = folder / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(_INFO.format(name=package, version=version), encoding="utf-8")
        (info / "entry_points.txt").write_text(entry_points(tree), encoding="utf-8")
        for module in tree.glob("*.py"):
            if module.stem != "setup":
                os.symlink(module.absolute(), folder / module.name)
    return folder


def entry_points(tree: Path) -> str:
    """The literal `entry_points` of a tree's setup.py as the text of entry_points.txt; empty when it has none."""
    try:
        module = ast.parse((tree / "setup.py").read_bytes())
    except (OSError, SyntaxError):
        return ""
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "entry_points":
            try:
                groups = ast.literal_eval(node.value)
            except ValueError:
                return ""
            return "".join(f"[{group}]\n" + "\n".join(lines) + "\n\n" for group, lines in groups.items())
    return ""
