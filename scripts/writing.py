# SPDX-License-Identifier: Apache-2.0
"""Write commits into a repository in one `git fast-import`, the same ids on every machine."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from scripts import git
from scripts.applying import AUTHOR, Commit
from scripts.paths import quote

_DATE = re.compile(r"^\d{4}-\d\d-\d\d$")


def write_commits(repo: Path, base: str, commits: list[Commit], ref: str) -> tuple[str, str]:
    """Put `commits` on top of `base` and point `ref` at the last. Returns (commit id, tree id)."""
    stream = [b"feature done\n"]
    parent = base.encode()
    for number, commit in enumerate(commits, 1):
        when = b"%d +0000" % _seconds(commit.date)
        message = commit.message.encode("utf-8", "surrogateescape")
        stream.append(b"commit %s\nmark :%d\n" % (ref.encode(), number))
        stream.append(b"author %s %s\n" % (commit.author.encode("utf-8", "surrogateescape"), when))
        stream.append(b"committer %s %s\n" % (AUTHOR.encode(), when))
        stream.append(b"data %d\n%s\nfrom %s\n" % (len(message), message, parent))
        for path, entry in commit.changes.items():
            name = quote(path).encode()
            if entry is None:
                stream.append(b"D %s\n" % name)
            else:
                stream.append(b"M %s inline %s\ndata %d\n%s\n" % (entry[0].encode(), name, len(entry[1]), entry[1]))
        parent = b":%d" % number
    if commits:
        stream.append(b"done\n")
        git.run(repo, "fast-import", "--quiet", "--done", "--force", "--date-format=raw", stdin=b"".join(stream))
    else:
        git.run(repo, "update-ref", ref, base)
    ids = git.text(repo, "rev-parse", f"{ref}^{{commit}}", f"{ref}^{{tree}}").split()
    return ids[0], ids[1]


def _seconds(date: str) -> int:
    """Midnight UTC of a YYYY-MM-DD date; a fixed day for anything else, which the linter names."""
    if not _DATE.match(date):
        return 946684800
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        return 946684800
    seconds = int(datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc).timestamp())
    return seconds if seconds >= 0 else 946684800
