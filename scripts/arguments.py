# SPDX-License-Identifier: Apache-2.0
"""Types of command-line values, and verbs whose module is loaded only when they are used."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high`, both included."""

    def convert(text: str) -> int:
        digits = text.removeprefix("-")
        # int() alone would take "1_0", " 7 " and digits of other scripts, and run long on thousands of digits.
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {low} to {high}")

    return convert


class VerbParser(argparse.ArgumentParser):
    """Options of one verb. Its module is imported when the verb is used, so that one verb does not load all."""

    verb: str | None = None

    # Every use passes here: parsing, its help, its usage errors.
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse's own, with the arguments of the verb's module in place."""
        if self.verb is not None:
            verb, self.verb = self.verb, None
            importlib.import_module(f"scripts.{verb}").arguments(self)
        return super().parse_known_args(args, namespace)
