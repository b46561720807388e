# SPDX-License-Identifier: Apache-2.0
"""The rules for series, headers, patches and overlay. Each yields findings, or says why it cannot judge."""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts import diff, header
from scripts.paths import link_leaves, quote, unsafe
from scripts.stack import NAME_RULE, OverlayFile

HOOK_LINES = 15  # more changed lines than this in one file want a Reason
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ORIGINS = ("upstream", "backport", "vendor", "other")


class Skip(Exception):
    """A rule cannot judge here; the text says why."""


@dataclass(frozen=True)
class Finding:
    """One broken rule: where, what, and the next action."""

    where: str
    what: str
    action: str


@dataclass
class Subject:
    """What is linted: the raw files of one upstream, its base when known, and the folder guards are looked up in."""

    upstream: str
    series: str
    patches: dict[str, bytes]  # file name -> bytes, for everything in the folder but the series
    overlay: list[OverlayFile]
    base: dict[bytes, tuple[str, str]] | None
    root: Path
    today: datetime.date = field(default_factory=datetime.date.today)

    def place(self, name: str) -> str:
        return f"patches/{self.upstream}/{name}"

    def listed(self) -> list[tuple[int, str]]:
        """(line number, word) of every entry of the series."""
        words = ((n, line.partition("#")[0].strip()) for n, line in enumerate(self.series.split("\n"), 1))
        return [(n, word) for n, word in words if word]

    def headers(self) -> Iterator[tuple[str, header.Header]]:
        """Parsed headers; malformed ones are another rule's business."""
        for name, data in self.patches.items():
            try:
                yield name, header.parse(_head(data))
            except ValueError:
                continue

    def changes(self) -> Iterator[tuple[str, diff.FileDiff]]:
        """Parsed changes of every patch; text that is no diff is another rule's business."""
        for name, data in self.patches.items():
            try:
                for change in _parse(data):
                    yield name, change
            except diff.DiffError:
                continue


Rule = Callable[[Subject], Iterator[Finding]]


def _head(data: bytes) -> str:
    return data.partition(b"\n\ndiff --git ")[0].decode("utf-8")


def _parse(data: bytes) -> list[diff.FileDiff]:
    head, _, body = data.partition(b"\n\ndiff --git ")
    return diff.parse(b"diff --git " + body, first_line=head.count(b"\n") + 3) if body else []


def series_missing(subject: Subject) -> Iterator[Finding]:
    """Every listed patch is there."""
    for number, word in subject.listed():
        if word not in subject.patches:
            place = f"{subject.place('series')}:{number}"
            yield Finding(place, f"`{word}` is listed but missing", "restore the file or remove the line")


def series_unused(subject: Subject) -> Iterator[Finding]:
    """Every file of the folder is listed."""
    listed = {word for _, word in subject.listed()}
    for name in subject.patches:
        if name not in listed:
            yield Finding(subject.place(name), "is not in the series", "list it in the series or remove the file")


def series_duplicate(subject: Subject) -> Iterator[Finding]:
    """No patch is listed twice, and every entry is a patch name."""
    seen: set[str] = set()
    for number, word in subject.listed():
        place = f"{subject.place('series')}:{number}"
        if word in seen:
            yield Finding(place, f"`{word}` is listed twice", "remove one of the lines")
        if not word.endswith(".patch") or not NAME_RULE.match(word[: -len(".patch")]):
            yield Finding(
                place, f"`{word}` is no patch name", "use lower case letters, digits, - _ . and end in .patch"
            )
        seen.add(word)


def subject_duplicate(subject: Subject) -> Iterator[Finding]:
    """No two patches share a subject."""
    seen: dict[str, str] = {}
    for name, head in subject.headers():
        title = head.get("Subject").lower()
        if title and title in seen:
            yield Finding(subject.place(name), f"has the subject of {seen[title]}", "give each patch its own subject")
        seen.setdefault(title, name)


def header_form(subject: Subject) -> Iterator[Finding]:
    """Headers are UTF-8 `Field: value` lines of known fields, then a blank line, then the diff."""
    for name, data in subject.patches.items():
        if b"\n\ndiff --git " not in data:
            yield Finding(subject.place(name), "has no header, blank line and diff", "see docs/patch-stack.md")
            continue
        try:
            header.parse(_head(data))
        except ValueError as exc:
            yield Finding(
                subject.place(name), f"malformed header: {exc}", "write `Field: value`, continue with a space"
            )


def header_fields(subject: Subject) -> Iterator[Finding]:
    """The required fields are there and not empty."""
    for name, head in subject.headers():
        for wanted in header.REQUIRED:
            if not head.get(wanted):
                yield Finding(subject.place(name), f"field `{wanted}` is missing or empty", f"add `{wanted}:`")


def header_values(subject: Subject) -> Iterator[Finding]:
    """Origin, Forwarded and Last-Update hold what DEP-3 allows."""
    for name, head in subject.headers():
        origin, forwarded, date = head.get("Origin"), head.get("Forwarded"), head.get("Last-Update")
        if origin and origin.split(",")[0].strip() not in ORIGINS:
            yield Finding(subject.place(name), f"Origin `{origin}`", f"use one of {', '.join(ORIGINS)}")
        if forwarded and forwarded not in ("no", "not-needed") and not _address(subject, forwarded):
            action = "use no, not-needed, an https address, or an existing docs/upstream/*.md"
            yield Finding(subject.place(name), f"Forwarded `{forwarded}`", action)
        try:
            day = datetime.date.fromisoformat(date) if date else None
        except ValueError:
            yield Finding(subject.place(name), f"Last-Update `{date}` is no date", "write YYYY-MM-DD")
            continue
        if day and day > subject.today + datetime.timedelta(days=1):
            yield Finding(
                subject.place(name), f"Last-Update {date} is in the future", "write the day of the last change"
            )


def header_commit(subject: Subject) -> Iterator[Finding]:
    """A header can be a commit and come back: an ident for Author, days that git has, no control characters."""
    for name, head in subject.headers():
        place = subject.place(name)
        author = head.fields.get("Author")
        if author is not None and (len(author) > 1 or header.ident_problem(head.get("Author"))):
            what = f"Author {' '.join(author)!r} is not `Name <address>`"
            yield Finding(place, what, "write both on one line, or leave the field out")
        if re.match(r"^(?:0|1[0-8]|19[0-6])", head.get("Last-Update")):
            yield Finding(
                place, f"Last-Update {head.get('Last-Update')} is before 1970", "write the day of the last change"
            )
        for key, lines in head.fields.items():
            if odd := _CONTROL.search("\n".join(lines)):
                yield Finding(place, f"field `{key}` holds the control character {odd[0]!r}", "take it out")


def _address(subject: Subject, value: str) -> bool:
    if re.match(r"^https://\S+$", value):
        return True
    return bool(re.match(r"^docs/[\w./-]+\.md$", value)) and (subject.root / value).is_file()


def patch_form(subject: Subject) -> Iterator[Finding]:
    """Patches are git diffs with full ids and without renames or binary hunks."""
    yield from _diff_findings(subject, "form", "make the change in build/trees and run `export`")
    for name, data in subject.patches.items():
        try:
            changes = _parse(data)
        except diff.DiffError:
            continue
        if changes and not data.endswith(b"\n\n" + diff.render(changes)):
            action = "make the change in build/trees and run `export`"
            yield Finding(subject.place(name), "is not in canonical form", action)


def context(subject: Subject) -> Iterator[Finding]:
    """Patches have no context lines."""
    yield from _diff_findings(subject, "context", "run `export`, or `git diff -U0`")


def heading(subject: Subject) -> Iterator[Finding]:
    """No section headings after the second @@: they quote upstream."""
    yield from _diff_findings(subject, "heading", "run `export`, it leaves them out")


def path_twice(subject: Subject) -> Iterator[Finding]:
    """No patch has two sections of one path: which of them came first would not show in the result."""
    yield from _diff_findings(subject, "twice", "make it one section: change the file in build/trees and run `export`")


def _diff_findings(subject: Subject, rule: str, action: str) -> Iterator[Finding]:
    for name, data in subject.patches.items():
        try:
            _parse(data)
        except diff.DiffError as exc:
            if exc.rule == rule:
                yield Finding(subject.place(name), str(exc), action)


def path(subject: Subject) -> Iterator[Finding]:
    """No path or link leaves the tree or enters a submodule."""
    modules = {p for p, (mode, _) in (subject.base or {}).items() if mode == "160000"}
    paths = [(subject.place(name), c.path) for name, c in subject.changes()]
    paths += [(f"overlay/{subject.upstream}", f.path) for f in subject.overlay]
    for place, used in paths:
        if reason := unsafe(used):
            yield Finding(place, f"{quote(used)} {reason}", "use a path inside the upstream tree")
        for module in modules:
            if used == module or used.startswith(module + b"/"):
                yield Finding(place, f"{quote(used)} lies in submodule {quote(module)}", "leave submodules alone")
    for name, change in subject.changes():
        target = b"".join(line for hunk in change.hunks for line in hunk.new)
        if change.new_mode == "120000" and link_leaves(change.path, target):
            yield Finding(subject.place(name), f"link {quote(change.path)} leaves the tree", "link inside the tree")
    for file in subject.overlay:
        if file.mode == "120000" and link_leaves(file.path, file.data):
            place = f"overlay/{subject.upstream}/{quote(file.path)}"
            yield Finding(place, "link leaves the tree", "link to a path inside the tree")


def new_file(subject: Subject) -> Iterator[Finding]:
    """Patches add no files: new files are overlay."""
    for name, change in subject.changes():
        if change.old_mode is None:
            place = subject.place(name)
            yield Finding(place, f"adds {quote(change.path)}", f"move it to overlay/{subject.upstream}/")


def hook_size(subject: Subject) -> Iterator[Finding]:
    """More than HOOK_LINES changed lines in a file have a Reason."""
    reasons = {name for name, head in subject.headers() if head.get("Reason")}
    for name, change in subject.changes():
        if change.added + change.removed > HOOK_LINES and name not in reasons:
            what = f"changes {change.added + change.removed} lines of {quote(change.path)}"
            yield Finding(subject.place(name), what, "move logic to the overlay, or add a `Reason:`")


def overlay_shadow(subject: Subject) -> Iterator[Finding]:
    """No overlay path exists upstream, as a file or as a folder."""
    if subject.base is None:
        raise Skip("the upstream source is not in the cache")
    folders = {b"/".join(p.split(b"/")[:n]) for p in subject.base for n in range(1, p.count(b"/") + 1)}
    for file in subject.overlay:
        above = [b"/".join(file.path.split(b"/")[:n]) for n in range(1, file.path.count(b"/") + 1)]
        taken = file.path in subject.base or file.path in folders or any(p in subject.base for p in above)
        if taken:
            place = f"overlay/{subject.upstream}/{quote(file.path)}"
            yield Finding(place, "upstream has this path", "rename it, or change upstream's with a patch")


def guard(subject: Subject) -> Iterator[Finding]:
    """The Guard of each patch is a test that exists."""
    if not (subject.root / "gates").is_dir():
        raise Skip("this checkout has no gates folder")
    for name, head in subject.headers():
        value = head.get("Guard")
        if value and (problem := guard_problem(subject.root, value)):
            yield Finding(subject.place(name), f"Guard `{value}`: {problem}", "name a test as file.py::test")


def guard_problem(root: Path, node: str) -> str | None:
    """Why `node` is no pytest node id of a test in the project, or None."""
    file, *names = node.partition("[")[0].split("::")
    if not file.startswith("gates/") or not names:
        return "is not gates/.../file.py::test"
    if unsafe(file.encode()) or not (root / file).is_file():
        return "the file does not exist"
    try:
        scope: list[ast.stmt] = ast.parse((root / file).read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError) as exc:
        return f"the file is no Python: {exc}"
    for name in names:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = next((n for n in scope if isinstance(n, kinds) and n.name == name), None)
        if found is None:
            return f"`{name}` is not defined there"
        scope = found.body
    return None


# Rule -> (its check, what there must be for it to judge at all).
RULES: dict[str, tuple[Rule, str]] = {
    "series-missing": (series_missing, "series"),
    "series-unused": (series_unused, "patches"),
    "series-duplicate": (series_duplicate, "series"),
    "subject-duplicate": (subject_duplicate, "headers"),
    "header-form": (header_form, "patches"),
    "header-fields": (header_fields, "headers"),
    "header-values": (header_values, "headers"),
    "header-commit": (header_commit, "headers"),
    "patch-form": (patch_form, "patches"),
    "context": (context, "patches"),
    "heading": (heading, "patches"),
    "path-twice": (path_twice, "patches"),
    "path": (path, "paths"),
    "new-file": (new_file, "changes"),
    "hook-size": (hook_size, "changes"),
    "overlay-shadow": (overlay_shadow, "overlay"),
    "guard": (guard, "headers"),
}
_ABSENT = {
    "series": "the series is empty",
    "patches": "there are no patches",
    "headers": "no patch has a readable header",
    "changes": "no patch has a readable diff",
    "overlay": "the overlay is empty",
    "paths": "there is neither a readable diff nor an overlay",
}


def judge(name: str, subject: Subject) -> list[Finding]:
    """Findings of one rule. Raises Skip when there is nothing it applies to, or it cannot judge."""
    rule, needs = RULES[name]
    there = {
        "series": bool(subject.listed()),
        "patches": bool(subject.patches),
        "headers": any(True for _ in subject.headers()),
        "changes": any(True for _ in subject.changes()),
        "overlay": bool(subject.overlay),
    }
    there["paths"] = there["changes"] or there["overlay"]
    if not there[needs]:
        raise Skip(_ABSENT[needs])
    return list(rule(subject))
