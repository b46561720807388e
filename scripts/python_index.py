# SPDX-License-Identifier: Apache-2.0
"""What a Python package defines, read from syntax trees: modules, names, classes with bases, signatures."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Signature:
    """Parameters a call may use: names in order, those with defaults, and whether *args / **kwargs take the rest."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    optional: frozenset[str]
    varargs: bool
    varkw: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.positional) | frozenset(self.keyword_only)

    @property
    def required(self) -> frozenset[str]:
        return self.names - self.optional


@dataclass
class Module:
    """One parsed module: names bound at its top level (branches included), and where imported names come from."""

    name: str
    package: bool
    tree: ast.Module
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # name -> (module, member)
    stars: list[str] = field(default_factory=list)
    dynamic: bool = False

    def __post_init__(self) -> None:
        for node in _top_level(self.tree.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.definitions.setdefault(node.name, node)
                self.dynamic |= node.name == "__getattr__"
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            self.definitions.setdefault(name.id, node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for bound, source, member in imports_of(node, self.name, self.package):
                    if member == "*":
                        self.stars.append(source)
                    else:
                        self.imported.setdefault(bound, (source, member))


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _top_level(getattr(node, block, []))
        for handler in getattr(node, "handlers", []):
            yield from _top_level(handler.body)


def imports_of(node: ast.stmt, module: str, package: bool) -> Iterator[tuple[str, str, str | None]]:
    """(bound name, source module, member or None) of an import statement, relative ones made absolute."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name, None
    elif isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if node.level:
            parts = module.split(".") if package else module.split(".")[:-1]
            parts = parts[: len(parts) - node.level + 1]
            source = ".".join([*parts, source]) if source else ".".join(parts)
        for alias in node.names:
            yield alias.asname or alias.name, source, alias.name


class Index:
    """The modules of one package in one tree, parsed when first asked for.

    Args:
        package: import name, for instance `vllm`.
        files: path of every Python file in the tree -> a function that reads it.
    """

    def __init__(self, package: str, files: dict[str, Callable[[], bytes]]) -> None:
        self.package = package
        self._files: dict[str, tuple[str, Callable[[], bytes]]] = {}
        for path, read in files.items():
            if path.startswith(package + "/") and path.endswith(".py"):
                self._files[module_name(path)] = (path, read)
        self._parsed: dict[str, Module | None] = {}
        parts = (name.split(".") for name in self._files)
        self._names = {".".join(p[:n]) for p in parts for n in range(1, len(p) + 1)}

    @cached_property
    def words(self) -> frozenset[str]:
        """Every identifier-like word in the package's sources."""
        word = re.compile(rb"[A-Za-z_]\w*")
        found: set[bytes] = set()
        for _, read in self._files.values():
            found.update(word.findall(read()))
        return frozenset(w.decode() for w in found)

    def has_module(self, name: str) -> bool:
        """Whether `name` is a module or a folder of the package."""
        return name in self._names

    def module(self, name: str) -> Module | None:
        """The parsed module, None when there is none or it does not parse."""
        if name not in self._parsed:
            self._parsed[name] = None
            if name in self._files:
                path, read = self._files[name]
                with contextlib.suppress(SyntaxError, ValueError):
                    self._parsed[name] = Module(name, path.endswith("/__init__.py"), ast.parse(read()))
        return self._parsed[name]

    def provides(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether `from module import name` works, as far as syntax trees tell."""
        if self.has_module(f"{module}.{name}"):
            return True
        found = self.module(module)
        if found is None:
            return False
        if found.dynamic or name in found.definitions or name in ("__name__", "__file__", "__doc__", "__path__"):
            return True
        if name in found.imported:
            return self._reaches(*found.imported[name], seen | {f"{module}:{name}"})
        return any(
            not s.startswith(self.package) or (s not in seen and self.provides(s, name, seen | {s}))
            for s in found.stars
        )

    def _reaches(self, source: str, member: str | None, seen: frozenset[str]) -> bool:
        if source.partition(".")[0] != self.package:
            return True
        if member is None:
            return self.has_module(source)
        return f"{source}:{member}" in seen or self.provides(source, member, seen)

    def find(self, module: str, name: str, depth: int = 0) -> tuple[Module, Definition] | None:
        """The function or class that `from module import name` gives, followed through re-exports."""
        found = self.module(module)
        if found is None or depth > 8:
            return None
        node = found.definitions.get(name)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return found, node
        if name in found.imported:
            source, member = found.imported[name]
            return self.find(source, member, depth + 1) if member else None
        for star in found.stars:
            if hit := self.find(star, name, depth + 1):
                return hit
        return None

    def method(self, module: Module, owner: ast.ClassDef, name: str, depth: int = 0) -> ast.FunctionDef | None:
        """The method `name` of a class or of its bases inside the package."""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        for base in owner.bases:
            if depth < 8 and (hit := self.base(module, base)) and (got := self.method(*hit, name, depth + 1)):
                return got
        return None

    def base(self, module: Module, node: ast.expr) -> tuple[Module, ast.ClassDef] | None:
        """The class that a base expression of `module` names, when the package defines it."""
        if isinstance(node, ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        hit = self.find(module.name, node.id)
        return (hit[0], hit[1]) if hit and isinstance(hit[1], ast.ClassDef) else None

    def call_signature(self, module: Module, node: Definition) -> Signature | None:
        """What calling a function or class accepts; None where syntax alone cannot tell."""
        if not isinstance(node, ast.ClassDef):
            return signature(node)
        if init := self.method(module, node, "__init__"):
            return signature(init, method=True)
        return None


def module_name(path: str) -> str:
    """Dotted name of a Python file in a package."""
    name = path.removesuffix(".py").replace("/", ".")
    return name.removesuffix(".__init__")


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool = False) -> Signature:
    """Signature of a function; with `method`, without its first parameter."""
    args = node.args
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    optional = set(positional[len(positional) - len(args.defaults) :]) if args.defaults else set()
    optional |= {a.arg for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is not None}
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    return Signature(
        tuple(positional[1:] if method and not static else positional),
        tuple(a.arg for a in args.kwonlyargs),
        frozenset(optional),
        args.vararg is not None,
        args.kwarg is not None,
    )
