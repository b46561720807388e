# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, hangs or is slow in a collective.

The rank exits with EXIT_CODE without a word (`die`), sleeps for good (`hang`) or for `seconds` before each collective
(`slow`), once `after` device collectives of its process have passed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gates.hpusim import hccl
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo

EXIT_CODE = 41
_FOREVER = 1e9


def start(fault: Fault) -> Callable[[], None]:
    rank, after, seconds = int(fault.number("rank")), int(fault.number("after")), fault.number("seconds")
    passed = 0

    def collective(name: str, tensor: torch.Tensor, group: Any) -> None:
        nonlocal passed
        passed += 1
        if passed <= after or not dist.is_initialized() or dist.get_rank() != rank:
            return
        if fault.kind == "slow":
            time.sleep(seconds)
            return
        print(f"hpusim: rank {rank} will {fault.kind} in {name} number {passed}", file=sys.stderr, flush=True)
        if fault.kind == "die":
            os._exit(EXIT_CODE)
        time.sleep(_FOREVER)

    undo = Undo()
    undo.append(hccl.collective_hooks, collective)
    return undo
