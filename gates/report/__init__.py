# SPDX-License-Identifier: Apache-2.0
"""The ledger as a page: HTML (one self-contained file), Markdown, a comparison of two ledgers, the support matrix."""
