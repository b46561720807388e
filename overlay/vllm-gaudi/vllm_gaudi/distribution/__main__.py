# SPDX-License-Identifier: Apache-2.0
"""`python -m vllm_gaudi.distribution`: print the record as JSON; exit 1 when the installed wheels do not match it."""

from __future__ import annotations

import json
import sys

from vllm_gaudi.distribution.record import RecordError, load, pair


def main() -> int:
    """Print this wheel's record on stdout; a missing or foreign partner wheel is named on stderr, exit code 1."""
    try:
        print(json.dumps(load(), indent=2, sort_keys=True))
        pair()
    except RecordError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
