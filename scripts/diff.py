# SPDX-License-Identifier: Apache-2.0
"""Zero-context git diffs as data: parse, render, and apply one file's change at its exact place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scripts.git import blob_id
from scripts.paths import quote, unquote

NULL_ID = "0" * 40
_HUNK = re.compile(rb"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)$")
_INDEX = re.compile(rb"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?$")
_NO_NEWLINE = b"\\ No newline at end of file"


class DiffError(ValueError):
    """Text that is no canonical zero-context diff, or a change that does not fit the file.

    `rule` is the lint rule it breaks: form, context, heading or twice.
    """

    def __init__(self, message: str, rule: str = "form") -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True)
class Hunk:
    """Lines `old` at line `old_start` give way to `new` at `new_start`; each line holds its newline if it has one."""

    old_start: int
    old: tuple[bytes, ...]
    new_start: int
    new: tuple[bytes, ...]

    @property
    def index(self) -> int:
        """Zero-based position in the old file."""
        return self.old_start - 1 if self.old else self.old_start


@dataclass(frozen=True)
class FileDiff:
    """The change of one path. Modes are None where the file does not exist; ids are NULL_ID there.

    A change of mode alone has no ids: git writes none.
    """

    path: bytes
    old_mode: str | None
    new_mode: str | None
    old_id: str
    new_id: str
    hunks: tuple[Hunk, ...] = ()

    @property
    def added(self) -> int:
        return sum(len(h.new) for h in self.hunks)

    @property
    def removed(self) -> int:
        return sum(len(h.old) for h in self.hunks)


def split_lines(content: bytes) -> list[bytes]:
    """Lines with their newline; only LF ends a line, as in git."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def apply(change: FileDiff, old: bytes) -> bytes:
    """`old` with `change` made.

    Raises:
        DiffError: when the content is not the pre-image, a removed line differs, or the result is not the post-image.
    """
    if change.old_id not in ("", NULL_ID) and blob_id(old) != change.old_id:
        raise DiffError(f"{quote(change.path)}: content is {blob_id(old)}, the patch was made for {change.old_id}")
    lines, out, at = split_lines(old), [], 0
    for hunk in change.hunks:
        if hunk.index < at or hunk.index + len(hunk.old) > len(lines):
            raise DiffError(f"{quote(change.path)}: hunk at line {hunk.old_start} lies outside the file or overlaps")
        out += lines[at : hunk.index]
        at = hunk.index + len(hunk.old)
        if tuple(lines[hunk.index : at]) != hunk.old:
            raise DiffError(f"{quote(change.path)}: lines removed at {hunk.old_start} are not there")
        if len(out) != (hunk.new_start - 1 if hunk.new else hunk.new_start):
            raise DiffError(f"{quote(change.path)}: hunk at line {hunk.old_start} states a wrong new position")
        out += hunk.new
    out += lines[at:]
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise DiffError(f"{quote(change.path)}: a line without newline is not the last one")
    result = b"".join(out)
    if change.new_id not in ("", NULL_ID) and blob_id(result) != change.new_id:
        raise DiffError(f"{quote(change.path)}: result is {blob_id(result)}, the patch promises {change.new_id}")
    return result


def render(changes: list[FileDiff]) -> bytes:
    """The canonical text: ascending paths, full ids, no context, no section headings."""
    out: list[bytes] = []
    for change in sorted(changes, key=lambda c: c.path):
        old, new = (quote(side + change.path).encode() for side in (b"a/", b"b/"))
        out.append(b"diff --git %s %s\n" % (old, new))
        if change.old_mode is None:
            out.append(b"new file mode %s\n" % (change.new_mode or "").encode())
        elif change.new_mode is None:
            out.append(b"deleted file mode %s\n" % change.old_mode.encode())
        elif change.old_mode != change.new_mode:
            out.append(f"old mode {change.old_mode}\nnew mode {change.new_mode}\n".encode())
        if change.old_id != change.new_id:
            same = f" {change.new_mode}" if change.old_mode == change.new_mode else ""
            out.append(f"index {change.old_id}..{change.new_id}{same}\n".encode())
        if change.hunks:
            tab = b"\t" if b" " in change.path and not old.startswith(b'"') else b""
            out.append(b"--- %s\n" % (b"/dev/null" if change.old_mode is None else old + tab))
            out.append(b"+++ %s\n" % (b"/dev/null" if change.new_mode is None else new + tab))
        for hunk in change.hunks:
            spans = [(hunk.old_start, len(hunk.old)), (hunk.new_start, len(hunk.new))]
            left, right = (f"{start}" if count == 1 else f"{start},{count}" for start, count in spans)
            out.append(f"@@ -{left} +{right} @@\n".encode())
            for sign, lines in ((b"-", hunk.old), (b"+", hunk.new)):
                for line in lines:
                    out.append(sign + line if line.endswith(b"\n") else sign + line + b"\n" + _NO_NEWLINE + b"\n")
    return b"".join(out)


class _Reader:
    """A cursor over the lines of a diff, for messages with line numbers."""

    def __init__(self, data: bytes, first_line: int) -> None:
        self.lines = data.split(b"\n")
        if self.lines and not self.lines[-1]:
            self.lines.pop()
        self.at = 0
        self.first = first_line

    def peek(self) -> bytes | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self, prefix: bytes) -> bytes | None:
        """The rest of the current line when it starts with `prefix`, stepping on; else None."""
        line = self.peek()
        if line is None or not line.startswith(prefix):
            return None
        self.at += 1
        return line[len(prefix) :]

    def fail(self, what: str, rule: str = "form") -> DiffError:
        line = self.peek()
        shown = "end of file" if line is None else repr(line[:60])
        if line is not None and line[:1] == b" ":
            what, rule = "context line in a zero-context patch", "context"
        return DiffError(f"line {self.first + self.at}: {what}, found {shown}", rule)


def parse(data: bytes, *, first_line: int = 1, from_git: bool = False) -> list[FileDiff]:
    """Parse a zero-context diff.

    Args:
        data: the text from the first `diff --git` line on.
        first_line: number of that line in its file, for messages.
        from_git: accept what git writes and a patch must not hold: section headings after the second `@@`, which quote
            upstream, and two sections of a path whose type changes.

    Raises:
        DiffError: naming the line; context lines, renames, binary hunks, abbreviated ids and a second section of one
            path are refused.
    """
    reader, changes = _Reader(data, first_line), []
    begins: dict[bytes, int] = {}
    while reader.peek() is not None:
        line = reader.first + reader.at
        change = _parse_file(reader, from_git)
        if change.path in begins and not from_git:
            said = f"{quote(change.path)} has a section at line {begins[change.path]} already"
            raise DiffError(f"line {line}: {said}; a patch changes a file once, and never its type", "twice")
        begins[change.path] = line
        changes.append(change)
    return changes


def _parse_file(reader: _Reader, from_git: bool) -> FileDiff:
    line = reader.take(b"diff --git ")
    if line is None:
        raise reader.fail("expected `diff --git`")
    half = (len(line) - 1) // 2
    try:
        old, new = unquote(line[:half].decode("ascii")), unquote(line[half + 1 :].decode("ascii"))
    except ValueError as exc:
        raise DiffError(f"line {reader.first + reader.at - 1}: bad path in {line!r}") from exc
    if old[:2] != b"a/" or new[:2] != b"b/" or old[2:] != new[2:]:
        raise DiffError(f"line {reader.first + reader.at - 1}: paths must be a/X b/X with equal X: {line!r}")
    path = old[2:]
    created, deleted = reader.take(b"new file mode "), reader.take(b"deleted file mode ")
    before, after = reader.take(b"old mode "), reader.take(b"new mode ")
    old_id = new_id = ""
    if (rest := reader.take(b"index ")) is not None:
        match = _INDEX.match(b"index " + rest)
        if not match:
            reader.at -= 1
            raise reader.fail("expected `index` with two full 40-digit ids")
        old_id, new_id, mode = match[1].decode(), match[2].decode(), match[3]
        before, after = before or mode, after or mode
    hunks: list[Hunk] = []
    if reader.take(b"--- ") is not None:
        if reader.take(b"+++ ") is None:
            raise reader.fail("expected `+++`")
        while (found := reader.peek()) is not None and found.startswith(b"@@ "):
            hunks.append(_parse_hunk(reader, from_git))
        if not hunks:
            raise reader.fail("expected a hunk")
    following = reader.peek()
    if following is not None and not following.startswith(b"diff --git "):
        raise reader.fail("unexpected line")
    if not (created or deleted or (before and after)):
        raise reader.fail(f"no mode for {quote(path)}")
    old_mode = None if created else (deleted or before or b"").decode()
    new_mode = None if deleted else (created or after or b"").decode()
    return FileDiff(path, old_mode, new_mode, old_id, new_id, tuple(hunks))


def _parse_hunk(reader: _Reader, from_git: bool) -> Hunk:
    match = _HUNK.match(reader.peek() or b"")
    if not match:
        raise reader.fail("malformed hunk line")
    if match[5] and not from_git:
        raise reader.fail("text after the second @@ quotes upstream, run `export`", "heading")
    reader.at += 1
    counts = [1 if match[g] is None else int(match[g]) for g in (2, 4)]
    sides: list[tuple[bytes, ...]] = []
    for sign, count in zip((b"-", b"+"), counts, strict=True):
        lines: list[bytes] = []
        while len(lines) < count:
            body = reader.take(sign)
            if body is None:
                raise reader.fail(f"expected a `{sign.decode()}` line")
            lines.append(body + b"\n")
        if lines and reader.take(_NO_NEWLINE) is not None:
            lines[-1] = lines[-1][:-1]
        sides.append(tuple(lines))
    return Hunk(int(match[1]), sides[0], int(match[3]), sides[1])
