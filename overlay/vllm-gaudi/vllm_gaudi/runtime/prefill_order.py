# SPDX-License-Identifier: Apache-2.0
"""Prefills of one step in the order the scheduler admitted them.

The scheduler publishes a prefix block as soon as the step that computes it is scheduled, so a request admitted
later in the same step may read it. The runner runs the prefills of a step one after the other, in the order of
the persistent batch, where a new request takes the lowest free row: it may run before the request whose block it
reads. The order of admission has the writer first.
"""

from __future__ import annotations

from typing import Any


def sort_prefills(runner: Any, scheduler_output: Any) -> None:
    """Bring the prefill rows, which follow the decode rows, into the order of `num_scheduled_tokens`."""
    batch = runner.input_batch
    first = sum(not runner._is_prompt(row, scheduler_output) for row in range(batch.num_reqs))
    if batch.num_reqs - first < 2:
        return
    rank = {req_id: i for i, req_id in enumerate(scheduler_output.num_scheduled_tokens)}
    wanted = sorted(batch.req_ids[first:], key=rank.__getitem__)
    for row, req_id in enumerate(wanted, first):
        if batch.req_ids[row] != req_id:
            batch.swap_states(row, batch.req_id_to_index[req_id])
