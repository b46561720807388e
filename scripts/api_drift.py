# SPDX-License-Identifier: Apache-2.0
"""Uses of an upstream that worked on its old release and cannot on the new one, found in syntax trees.

Four finders, each silent about what it cannot decide: imports, base-class signatures, vanished names, call keywords.
A finding is always a difference between old and new; a use that the old release does not explain either is no drift.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.python_index import Definition, Index, Module, Signature, imports_of, module_name, signature


@dataclass(frozen=True, order=True)
class Drift:
    """One use that the new upstream breaks. `place` is file:line in the consumer."""

    place: str
    finder: str
    what: str


@dataclass(frozen=True)
class Pair:
    """One upstream package before and after."""

    old: Index
    new: Index

    @property
    def package(self) -> str:
        return self.old.package


def find_drift(pair: Pair, files: dict[str, bytes]) -> list[Drift]:
    """All findings, sorted, in those `files` of a consumer (path -> source) that mention the package or lie in it."""
    found: set[Drift] = set()
    trees = {}
    mention = re.compile(rb"\b%s\b" % pair.package.encode())
    for path, source in files.items():
        if not mention.search(source) and not _module(path).startswith(pair.package + "."):
            continue
        try:
            trees[path] = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
    own = _defined(trees.values())
    vanished = pair.old.words - pair.new.words
    for path, tree in trees.items():
        names = _imported_names(pair.package, path, tree)
        found.update(_imports(pair, path, tree))
        found.update(_bases(pair, path, tree, names))
        found.update(_keywords(pair, path, tree, names))
        found.update(_vanished(vanished, own, path, tree))
    return sorted(found)


def _module(path: str) -> str:
    """Dotted name of a consumer file: `overlay/<upstream>/` or `<upstream>/` is where it lies, not what it is."""
    return module_name(path.split("/", 2)[2] if path.startswith("overlay/") else path.partition("/")[2])


def _imported_names(package: str, path: str, tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names in a consumer file that stand for a member of the package: name -> (module, member)."""
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for bound, source, member in imports_of(node, _module(path), path.endswith("/__init__.py")):
                if source.partition(".")[0] == package and member and member != "*":
                    names[bound] = (source, member)
    return names


def _imports(pair: Pair, path: str, tree: ast.Module) -> Iterator[Drift]:
    """Imports, and strings of the form `package.module:Name`, that resolve in the old package only."""
    dotted = re.compile(rf"^{re.escape(pair.package)}(\.\w+)+(:\w+)?$")
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for _, source, member in imports_of(node, _module(path), path.endswith("/__init__.py")):
                if source.partition(".")[0] != pair.package:
                    continue
                if member in (None, "*"):
                    gone = pair.old.has_module(source) and not pair.new.has_module(source)
                    what = f"module {source} is gone"
                else:
                    assert member is not None
                    gone = pair.old.provides(source, member) and not pair.new.provides(source, member)
                    where = "" if pair.new.has_module(source) else " (the module is gone)"
                    what = f"{source} no longer has {member}{where}"
                if gone:
                    yield Drift(f"{path}:{node.lineno}", "import", what)
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and dotted.match(node.value):
            value = node.value
            if _string_resolves(pair.old, value) and not _string_resolves(pair.new, value):
                yield Drift(f"{path}:{node.lineno}", "import", f"{value} (named in a string) is gone")


def _string_resolves(index: Index, value: str) -> bool:
    module, _, name = value.partition(":")
    if name:
        return index.provides(module, name)
    parent, _, last = module.rpartition(".")
    return index.has_module(module) or index.provides(parent, last)


def _bases(pair: Pair, path: str, tree: ast.Module, names: dict[str, tuple[str, str]]) -> Iterator[Drift]:
    """Overrides of upstream methods whose signature changed or that are gone."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for base in owner.bases:
            if not isinstance(base, ast.Name) or base.id not in names:
                continue
            source, member = names[base.id]
            old, new = pair.old.find(source, member), pair.new.find(source, member)
            if not (old and new and isinstance(old[1], ast.ClassDef) and isinstance(new[1], ast.ClassDef)):
                continue
            for node in owner.body:
                if isinstance(node, ast.FunctionDef):
                    before = pair.old.method(old[0], old[1], node.name)
                    after = pair.new.method(new[0], new[1], node.name)
                    if before is not None and (why := _override_broken(node, before, after)):
                        yield Drift(f"{path}:{node.lineno}", "base signature", f"{member}.{node.name}: {why}")


def _override_broken(ours: ast.FunctionDef, before: ast.FunctionDef, after: ast.FunctionDef | None) -> str | None:
    """Why an override made for `before` does not fit `after`. Constructors are called by us, not by upstream."""
    if after is None:
        return "upstream no longer has the method"
    if ours.name == "__init__":
        return None
    mine, old, new = signature(ours, True), signature(before, True), signature(after, True)
    added = [n for n in (*new.positional, *new.keyword_only) if n not in old.names and n not in mine.names]
    if added and not mine.varkw:
        return f"upstream added {', '.join(added)}"
    gone = sorted(n for n in old.names - new.names if n in mine.required)
    return f"upstream removed {', '.join(gone)}" if gone and not new.varkw else None


def _keywords(pair: Pair, path: str, tree: ast.Module, names: dict[str, tuple[str, str]]) -> Iterator[Drift]:
    """Calls whose keywords the new signature refuses, or that lack a parameter it requires."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
            continue
        source, member = names[node.func.id]
        signatures = [_call_signature(index, index.find(source, member)) for index in (pair.old, pair.new)]
        old, new = signatures
        if old is None or new is None:
            continue
        given = {k.arg for k in node.keywords if k.arg}
        refused = sorted(given & old.names - new.names) if not new.varkw else []
        open_ended = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        filled = given | set(new.positional[: len(node.args)])
        lacking = [] if open_ended else sorted(new.required - filled - old.required)
        if refused:
            yield Drift(f"{path}:{node.lineno}", "call keyword", f"{member}() no longer takes {', '.join(refused)}")
        if lacking:
            yield Drift(f"{path}:{node.lineno}", "call keyword", f"{member}() now requires {', '.join(lacking)}")


def _call_signature(index: Index, hit: tuple[Module, Definition] | None) -> Signature | None:
    return index.call_signature(*hit) if hit else None


def _vanished(vanished: frozenset[str], own: set[str], path: str, tree: ast.Module) -> Iterator[Drift]:
    """Attributes and keywords whose name no longer occurs anywhere in the upstream package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, line = node.attr, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            name, line = node.arg, node.value.lineno
        else:
            continue
        if name in vanished and name not in own:
            yield Drift(f"{path}:{line}", "vanished name", f"`{name}` no longer occurs in the package")


def _defined(trees: object) -> set[str]:
    """Names the consumer defines itself: functions, classes, parameters, assigned names and attributes."""
    own: set[str] = set()
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.arg):
                own.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
    return own
