# SPDX-License-Identifier: Apache-2.0
"""Blocks of a request that is preempted in the step that would have computed them.

The scheduler publishes a prefix block when it allocates the step that fills it. By priority it may then preempt that
request for a more urgent one of the same step: the step no longer computes the block, but its hash stays, and the
first request that begins alike (the preempted one itself, when it resumes) reads keys that nobody wrote. By arrival
the preempted request is always one that was not scheduled yet.
"""

from __future__ import annotations

from typing import Any


def withdraw(scheduler: Any, request: Any) -> None:
    """Take the blocks of `request` that hold uncomputed tokens out of the prefix cache; before its blocks are freed."""
    manager = scheduler.kv_cache_manager
    if not manager.enable_caching:
        return
    groups = manager.kv_cache_config.kv_cache_groups
    uncomputed: set[int] = set()
    for group, ids in zip(groups, manager.get_block_ids(request.request_id), strict=True):
        uncomputed.update(ids[request.num_computed_tokens // group.kv_cache_spec.block_size :])
    manager.evict_blocks(uncomputed)


def install(scheduler: Any) -> None:
    """Let a scheduler that preempts by priority withdraw blocks; does nothing for others and when repeated."""
    from vllm.v1.core.sched.request_queue import SchedulingPolicy

    if "_frontier_withdraws" in scheduler.__dict__:
        return
    scheduler.__dict__["_frontier_withdraws"] = True
    if scheduler.policy != SchedulingPolicy.PRIORITY:
        return
    preempt = scheduler._preempt_request

    def withdraw_first(request: Any, *args: Any, **kwargs: Any) -> Any:
        withdraw(scheduler, request)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = withdraw_first
