# SPDX-License-Identifier: Apache-2.0
"""The DEP-3 header of a patch: `Field: value`, continuation lines start with a space."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FIELDS = ("Subject", "Description", "Author", "Origin", "Bug", "Forwarded", "Last-Update", "Removal", "Guard", "Reason")
REQUIRED = ("Subject", "Description", "Origin", "Forwarded", "Last-Update", "Removal", "Guard")
TRAILERS = (
    "Signed-off-by",
    "Co-authored-by",
    "Reviewed-by",
    "Acked-by",
    "Tested-by",
    "Reported-by",
)  # any number of each
NAME = "Patch-Name"

_FIELD = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Za-z]+)*): ?(.*)$")
_IDENT = re.compile(r"[^<>\0\n]*[^<>\s\0] <[^<>\0\n]*>\Z")


@dataclass(frozen=True)
class Header:
    """Fields of one patch, each with its lines as written (the first after `Name: `, the rest with their space).

    A trailer has one line for each time that it is given.
    """

    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """The value of a field on one line, empty when absent."""
        return " ".join(line.strip() for line in self.fields.get(name, ())).strip()

    def with_field(self, name: str, *lines: str) -> Header:
        """A copy with `name` set to `lines`."""
        return Header({**self.fields, name: lines})

    def lines(self, *, skip: tuple[str, ...] = ()) -> list[str]:
        """The header as text lines, in the canonical order of fields."""
        out: list[str] = []
        for name in FIELDS:
            if name in self.fields and name not in skip:
                first, *rest = self.fields[name]
                out.append(f"{name}: {first}".rstrip())
                out += rest
        return out + [f"{name}: {line}" for name in TRAILERS for line in self.fields.get(name, ())]


def parse(text: str) -> Header:
    """Parse header lines.

    Raises:
        ValueError: naming the line, when a line is no field, no continuation, or a field is unknown or given twice.
    """
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if "\0" in line:
            raise ValueError(f"line {number}: holds a NUL, which no commit message can")
        if line.startswith(" "):
            if current is None:
                raise ValueError(f"line {number}: continuation before any field, or of a trailer, which is one line")
            current.append(line.rstrip())
        elif match := _FIELD.match(line):
            name = match[1]
            if name in TRAILERS:
                fields.setdefault(name, []).append(match[2].rstrip())
                current = None
                continue
            if name not in FIELDS:
                raise ValueError(f"line {number}: unknown field `{name}`, known are {', '.join((*FIELDS, *TRAILERS))}")
            if name in fields:
                raise ValueError(f"line {number}: field `{name}` is given twice")
            current = fields[name] = [match[2].rstrip()]
        else:
            raise ValueError(f"line {number}: neither `Field: value` nor a continuation: {line[:60]!r}")
    return Header({name: tuple(lines) for name, lines in fields.items()})


def to_message(header: Header, name: str) -> str:
    """The commit message that carries `header` and the patch's file name."""
    rest = header.lines(skip=("Subject", "Author"))
    subject = header.fields.get("Subject", ("",))
    return "\n".join([subject[0], *subject[1:], "", *rest, f"{NAME}: {name}", ""])


def from_message(message: str) -> tuple[Header, str | None]:
    """Header and patch name out of a commit message.

    Paragraphs that are no field are added to the Description, wherever they stand.

    Raises:
        ValueError: naming the lines that have no place in a header.
    """
    subject, _, body = message.strip("\n").partition("\n\n")
    first, *more = subject.split("\n")
    reader = _Message({"Subject": [first, *(" " + line.strip() for line in more)]})
    for line in body.split("\n"):
        reader.take(line.rstrip())
    if reader.unplaced:
        raise ValueError("; ".join(repr(line) for line in reader.unplaced))
    if text := "\n".join(reader.prose).strip("\n"):
        described = reader.fields.setdefault("Description", [])
        lines = [f" {line}" if line else " ." for line in text.split("\n")]
        described += [" .", *lines] if described else [lines[0][1:], *lines[1:]]
    return Header({name: tuple(lines) for name, lines in reader.fields.items()}), reader.name


class _Message:
    """Reads the body of a commit message line by line."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self.fields = fields
        self.name: str | None = None
        self.prose: list[str] = []
        self.unplaced: list[str] = []
        self._current: list[str] | None = None  # the field that a continuation belongs to
        self._blank = True  # the line before was empty
        self._paragraph = False  # that line was text

    def take(self, line: str) -> None:
        """Take the next line."""
        match = None if self._paragraph and not self._known(line) else _FIELD.match(line)
        if not line:
            self._blank, self._paragraph = True, False
            return
        if match:
            self._field(match[1], match[2], line)
        elif line.startswith(" ") and self._current is not None:
            self._current += [" ."] * self._blank + [line]
        elif self._blank or self._paragraph:
            self.prose += [""] * self._blank + [line]
            self._paragraph, self._current = True, None
        else:  # directly below a field, without the space of a continuation
            self.unplaced.append(line)
        self._blank = False

    def _known(self, line: str) -> bool:
        match = _FIELD.match(line)
        return bool(match) and match[1] in (*FIELDS, *TRAILERS, NAME)  # type: ignore[index]

    def _field(self, name: str, value: str, line: str) -> None:
        self._paragraph, self._current = False, None
        if name == NAME and self.name in (None, value.strip()):
            self.name = value.strip()
        elif name in TRAILERS:
            lines = self.fields.setdefault(name, [])
            lines += [value] * (value not in lines)
        elif name in FIELDS and name not in self.fields:
            self._current = self.fields[name] = [value]
        elif name == NAME or name not in FIELDS or self.fields[name] != [value]:
            self.unplaced.append(line)


def ident_problem(author: str) -> str | None:
    """Why `author` cannot be the author of a commit, or None."""
    if _IDENT.match(author):
        return None
    return f"Author {author!r} is not `Name <address>`"


def slug(subject: str) -> str:
    """A file name for a patch out of its subject."""
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:60].rstrip("-") or "patch"
