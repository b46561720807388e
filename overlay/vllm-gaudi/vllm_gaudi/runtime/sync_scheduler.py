# SPDX-License-Identifier: Apache-2.0
"""Scheduler without async scheduling that keeps the prefill share."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_gaudi.runtime import prefill_share


class PrefillShareScheduler(Scheduler):
    """vLLM's scheduler, holding long prompts back as `prefill_share` says."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        prefill_share.before_schedule(self)
        output = super().schedule(throttle_prefills)
        prefill_share.after_schedule(self, output)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> dict[int, Any]:
        prefill_share.step_ended(self, scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)
