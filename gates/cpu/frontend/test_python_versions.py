# SPDX-License-Identifier: Apache-2.0
"""The wheel is for Python 3.10 and later: no module imports what only a later one has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm.parser

# CPython moved its regex parser into the package in 3.11; the others are new in 3.11 or later.
NEW_MODULES = {"tomllib"}
NEW_NAMES = {
    "re": {"_constants", "_parser", "_compiler", "NOFLAG"},
    "typing": {"Self", "Never", "LiteralString", "assert_never", "Unpack", "override", "NotRequired"},
    "enum": {"StrEnum"},
    "datetime": {"UTC"},
    "asyncio": {"TaskGroup", "timeout", "Runner"},
    "itertools": {"batched"},
}
ROOT = Path(vllm.parser.__file__).parent


def too_new(source: str) -> list[str]:
    """Imports of `source` that Python 3.10 lacks and that no `if` guards."""
    found: list[str] = []
    tree = ast.parse(source)
    guarded = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) for node in ast.walk(test)}
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom):
            found += [
                f"{node.module}.{name.name}" for name in node.names if name.name in NEW_NAMES.get(node.module, ())
            ]
            found += [node.module] if node.module in NEW_MODULES else []
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name in NEW_MODULES]
    return found


def modules() -> list[Path]:
    folders = [ROOT / name for name in ("turn_grammar", "chat_format", "chat_prompt")]
    return [path for folder in folders for path in sorted(folder.glob("*.py"))] + [ROOT / "unified.py"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_modules_import_on_the_oldest_python(path):
    source = path.read_text()
    ast.parse(source, feature_version=(3, 10))
    assert too_new(source) == []


def test_what_is_too_new_is_found():
    """Control: the import that broke 3.10, and the same one guarded."""
    assert too_new("from re import _constants as C") == ["re._constants"]
    assert too_new("import sys\nif sys.version_info >= (3, 11):\n    from re import _parser\n") == []
