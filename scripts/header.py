# SPDX-License-Identifier: Apache-2.0
"""The DEP-3 header of a patch: `Field: value`, continuation lines start with a space."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FIELDS = ("Subject", "Description", "Author", "Origin", "Bug", "Forwarded", "Last-Update", "Removal", "Guard", "Reason")
REQUIRED = ("Subject", "Description", "Origin", "Forwarded", "Last-Update", "Removal", "Guard")
NAME = "Patch-Name"

_FIELD = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Z][A-Za-z]*)*): ?(.*)$")


@dataclass(frozen=True)
class Header:
    """Fields of one patch, each with its lines as written (the first after `Name: `, the rest with their space)."""

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
        return out


def parse(text: str) -> Header:
    """Parse header lines.

    Raises:
        ValueError: naming the line, when a line is no field, no continuation, or a field is unknown or given twice.
    """
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(" "):
            if current is None:
                raise ValueError(f"line {number}: continuation before any field")
            current.append(line.rstrip())
        elif match := _FIELD.match(line):
            name = match[1]
            if name not in FIELDS:
                raise ValueError(f"line {number}: unknown field `{name}`, known are {', '.join(FIELDS)}")
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
    """Header and patch name out of a commit message; prose that is no field becomes the Description."""
    subject, _, body = message.strip("\n").partition("\n\n")
    fields: dict[str, tuple[str, ...]] = {"Subject": tuple(subject.split("\n"))}
    fields["Subject"] = (fields["Subject"][0], *(" " + line.strip() for line in fields["Subject"][1:]))
    name: str | None = None
    prose: list[str] = []
    current: str | None = None
    for line in body.split("\n"):
        match = _FIELD.match(line)
        if match and match[1] == NAME:
            name, current = match[2].strip(), None
        elif match and match[1] in FIELDS and match[1] != "Subject":
            current = match[1]
            fields[current] = (match[2].rstrip(),)
        elif line.startswith(" ") and current:
            fields[current] = (*fields[current], line.rstrip())
        else:
            current = None
            prose.append(line.rstrip())
    if "Description" not in fields and any(prose):
        text = "\n".join(prose).strip("\n").split("\n")
        fields["Description"] = (text[0], *(f" {line}" if line else " ." for line in text[1:]))
    return Header(fields), name


def slug(subject: str) -> str:
    """A file name for a patch out of its subject."""
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")[:60].rstrip("-") or "patch"
