# SPDX-License-Identifier: Apache-2.0
"""Client gates: each file is one gate (or one family), needing nothing but a server's address."""
