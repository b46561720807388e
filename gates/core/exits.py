# SPDX-License-Identifier: Apache-2.0
"""Exit codes of `python -m gates`; here, as they must be known where nothing else can be imported."""

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_ERROR, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
