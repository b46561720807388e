# SPDX-License-Identifier: Apache-2.0
"""What every gate shares: result schema, ledger, thresholds, client, runner, statistics."""
