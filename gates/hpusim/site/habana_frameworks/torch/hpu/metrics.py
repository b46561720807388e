# SPDX-License-Identifier: Apache-2.0
"""Compilation metrics."""

from gates.hpusim.metrics import metric_global, metric_localcontext

__all__ = ["metric_global", "metric_localcontext"]
