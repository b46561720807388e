# SPDX-License-Identifier: Apache-2.0
"""Messages go to stderr, data to stdout; colour only where a terminal wants it."""

from __future__ import annotations

import os
import sys


def colour(stream_is_tty: bool) -> bool:
    """Whether to colour: NO_COLOR and dumb terminals say no."""
    return stream_is_tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, code: str) -> str:
    """`text` for stderr, in the SGR `code` where colour is wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour(sys.stderr.isatty()) else text


def note(message: str) -> None:
    """A line of progress."""
    print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Something the reader should look at that does not stop the run."""
    print(f"{paint('warning', '33')}: {message}", file=sys.stderr, flush=True)


def error(message: str) -> None:
    """Why the run stops."""
    print(f"{paint('error', '31')}: {message}", file=sys.stderr, flush=True)


def data(text: str) -> None:
    """Output of the verb itself."""
    print(text, flush=True)


def raw(content: bytes) -> None:
    """Output of the verb itself that need not be text."""
    if sys.stdout is not None:  # as print() has it
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def interactive() -> bool:
    """Whether moving progress (bars, percentages) is readable."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
