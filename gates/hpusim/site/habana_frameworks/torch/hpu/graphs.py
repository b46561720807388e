# SPDX-License-Identifier: Apache-2.0
"""HPU graphs."""

from gates.hpusim.graphs import HPUGraph, input_hash, wrap_in_hpu_graph, wrap_in_hpu_graph_func

__all__ = ["HPUGraph", "input_hash", "wrap_in_hpu_graph", "wrap_in_hpu_graph_func"]
