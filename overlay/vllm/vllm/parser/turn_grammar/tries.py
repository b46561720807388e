# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that say "not one of these strings", built from a prefix tree.

xgrammar's regex dialect has no look-around, so what a name or a first character must not be
is spelled out along the tree of the forbidden strings.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm.parser.turn_grammar.patterns import escape, escape_in_class

Trie = dict[str, "Trie"]


def trie(words: Iterable[str]) -> tuple[Trie, set[str]]:
    """The prefix tree of `words`, in their order, and the set of words. The tag text is a cache key, in two processes:
    it must not follow the order of a set."""
    root: Trie = {}
    listed = list(words)
    for word in listed:
        node = root
        for char in word:
            node = node.setdefault(char, {})
    return root, set(listed)


def first_text(forbidden: Iterable[str]) -> str:
    """Regex of a shortest non-empty beginning that none of `forbidden` can overlap.

    It walks the tree of the forbidden strings and leaves it, from any proper prefix, on a
    character that begins none of them. Text after it can be searched for `forbidden` from
    scratch. A one-character forbidden string is never begun.
    """
    root, words = trie(word for word in forbidden if word)
    if not root:
        return r"[\s\S]"
    starts = "".join(sorted(root))
    branches: list[str] = []
    stack: list[tuple[str, Trie]] = [("", root)]
    while stack:
        prefix, node = stack.pop()
        taken = starts + "".join(char for char in sorted(node) if char not in starts)
        branches.append(f"{escape(prefix)}[^{''.join(map(escape_in_class, taken))}]")
        stack += [
            (prefix + char, child) for char, child in reversed(node.items()) if child and prefix + char not in words
        ]
    return "|".join(branches)


def other_names(excluded_class: str, names: Iterable[str]) -> str:
    """Regex of one or more characters outside `excluded_class` that spell none of `names`.

    Args:
        excluded_class: members of a negated bracket class, as in `[^...]+`.
        names: spellable names to leave out. The regex nests as deep as the longest of them is long.
    """
    root, words = trie(names)
    if not words:
        return f"[^{excluded_class}]+"
    return f"(?:{_others(excluded_class, root, words)})"


def _others(excluded: str, root: Trie, words: set[str]) -> str:
    """The choices at `root`, built from the leaves up: a name may be longer than the interpreter's stack is deep."""
    tail = f"[^{excluded}]*"
    built: dict[str, str] = {}
    stack: list[tuple[str, Trie, bool]] = [("", root, False)]
    while stack:
        prefix, node, below_is_built = stack.pop()
        if not below_is_built:
            stack.append((prefix, node, True))
            stack += [(prefix + char, child, False) for char, child in node.items()]
            continue
        branches = [f"[^{excluded}{''.join(escape_in_class(char) for char in sorted(node))}]{tail}"]
        for char in sorted(node):
            optional = "" if prefix + char in words else "?"
            branches.append(f"{escape(char)}(?:{built.pop(prefix + char)}){optional}")
        built[prefix] = "|".join(branches)
    return built[""]
