# SPDX-License-Identifier: Apache-2.0
"""The listener: sorts the device's events into phases, steps and layers.

Phases: `load`, `kv_cache`, `warmup`, one per kind of step (`prefill`, `decode`, `mixed`, each with `+grammar` when a
grammar mask was applied), `background` (other threads) and `outside`. What kind a step is shows only at its end, so its
counters are kept apart until then.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import cache
from typing import Any

import torch

from gates.hpusim import memory, tracker
from gates.hpusim.meters.counts import Counts, Transfers

STEPS_KEPT = 5000


class Meter:
    """Counts everything while it is attached to `probe.listeners` and `tracker.op_hooks`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything, as the child of a fork must: what its parent did is its parent's."""
        self.phases: dict[str, Counts] = defaultdict(Counts)
        self.steps: dict[str, int] = defaultdict(int)
        self.records: list[dict[str, Any]] = []
        self.layers: dict[str, dict[str, Counts]] = defaultdict(lambda: defaultdict(Counts))
        self.compiles_after_warmup: list[str] = []
        self.warmed_up = False
        self.rank = 0
        self.events = 0
        self.step_seconds = 0.0
        self.thread = threading.get_ident()
        self.stack: list[str] = []
        self.step: Counts | None = None
        self.in_step = False  # between its two halves the engine does other things, such as reading the last step
        self.step_layers: dict[str, Counts] = {}
        self.step_prompt = self.step_decode = self.step_grammar = False
        self.layer: str | None = None
        self.pending = 0  # operators since the last cut

    # -- where the counters go -------------------------------------------------------------------------------------
    def current(self) -> Counts:
        if threading.get_ident() != self.thread:
            return self.phases["background"]
        if self.stack:
            return self.phases[self.stack[-1]]
        if self.step is not None and self.in_step:
            return self.step
        return self.phases["outside"]

    def targets(self) -> tuple[Counts, ...]:
        if self.layer is not None and self.step is not None and self.in_step and not self.stack:
            if self.layer not in self.step_layers:
                self.step_layers[self.layer] = Counts()
            return self.current(), self.step_layers[self.layer]
        return (self.current(),)

    def begin_step(self) -> None:
        self.step, self.step_layers = Counts(), {}
        self.step_prompt = self.step_decode = self.step_grammar = False

    def end_step(self) -> None:
        if self.step is None:
            return
        kind = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}.get(
            (self.step_prompt, self.step_decode), "idle"
        ) + ("+grammar" if self.step_grammar else "")
        self.phases[kind].merge(self.step)
        self.steps[kind] += 1
        for layer, counts in self.step_layers.items():
            self.layers[kind][layer].merge(counts)
        if len(self.records) < STEPS_KEPT:
            self.records.append({"kind": kind, **self.step.brief()})
        self.step, self.step_layers = None, {}

    def total(self) -> Counts:
        """All phases together."""
        result = Counts()
        for counts in list(self.phases.values()):
            result.merge(counts)
        return result

    # -- events ----------------------------------------------------------------------------------------------------
    def on_op(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        name = func.name()
        self.events += 1
        if _no_work(func):
            return
        self.pending += 1
        live = memory.memory_allocated()
        for counts in self.targets():
            counts.ops[name] += 1
            counts.memory_peak = max(counts.memory_peak, live)
            if name.startswith("hpu::mixture_of_experts"):
                tensors = _count_tensors(args) + _count_tensors(tuple(kwargs.values()))
                counts.moe_launches += 1
                counts.moe_tensor_inputs += tensors
                counts.moe_tensor_inputs_max = max(counts.moe_tensor_inputs_max, tensors)
            elif "sdpa_recomp_fwd" in name:
                counts.attention_calls += 1
                counts.attention_workspace = max(counts.attention_workspace, attention_workspace(args))

    def cut(self, in_graph: bool) -> bool:
        """End the graph segment being accumulated; True when there was anything in it."""
        if not self.pending:
            return False
        self.pending = 0
        for counts in self.targets():
            counts.launches += 1
            counts.launches_in_graph += in_graph
        return True

    def __call__(self, kind: str, nbytes: int, info: dict[str, Any]) -> None:
        self.events += 1
        handler = getattr(self, f"_{kind}", None)
        if handler is None:
            raise NotImplementedError(f"the meters do not know the event {kind!r}")
        handler(nbytes, info)

    def _mark_step(self, nbytes: int, info: dict[str, Any]) -> None:
        full = self.cut("in_graph" in info)
        for counts in self.targets():
            counts.mark_steps += 1
            counts.empty_mark_steps += not full

    def _collective(self, nbytes: int, info: dict[str, Any]) -> None:
        full = self.cut("in_graph" in info)
        key = f"{info['op']} {info['dtype'].removeprefix('torch.')}"
        for counts in self.targets():
            counts.collective_cuts += full
            counts.collectives[key] += 1
            counts.collective_bytes[key] += nbytes

    def _copy(self, direction: str, nbytes: int, info: dict[str, Any]) -> None:
        if info.get("blocking") and direction == "d2h":  # a write waits for the copy, not for the work before it
            self.cut("in_graph" in info)
        for counts in self.targets():
            transfers: Transfers = getattr(counts, direction)
            transfers.add(nbytes, bool(info.get("blocking")), info.get("caller", "?"))

    def _h2d(self, nbytes: int, info: dict[str, Any]) -> None:
        self._copy("h2d", nbytes, info)

    def _d2h(self, nbytes: int, info: dict[str, Any]) -> None:
        self._copy("d2h", nbytes, info)

    def _sync(self, nbytes: int, info: dict[str, Any]) -> None:
        self.cut("in_graph" in info)
        for counts in self.targets():
            counts.syncs[f"{info['op']} @ {info.get('caller', '?')}"] += 1

    def _event_record(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.event_records += 1

    def _event_wait(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.event_waits += 1
            counts.event_waits_unrecorded += not info["recorded"]

    def _graph_capture(self, nbytes: int, info: dict[str, Any]) -> None:
        self.cut(False)
        for counts in self.targets():
            counts.captures[f"{info['name']} {info['key'] & 0xFFFFFFFF:08x}"] += 1

    def _graph_replay(self, nbytes: int, info: dict[str, Any]) -> None:
        self.cut(False)
        for counts in self.targets():
            counts.replays[f"{info['name']} {info['key'] & 0xFFFFFFFF:08x}"] += 1

    def _graph_end(self, nbytes: int, info: dict[str, Any]) -> None:
        self.cut(True)

    def _compile(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.compiles[info["name"]] += 1
        if self.warmed_up:
            self.compiles_after_warmup.append(info["name"])

    def _compiled_call(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.compiled_calls += 1

    def _mixed(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.mixed[f"{info['op']} @ {info['caller']}"] += 1

    def _tensor_repr(self, nbytes: int, info: dict[str, Any]) -> None:
        for counts in self.targets():
            counts.tensor_reprs += 1
            counts.moe_tensor_reprs += "mixture_of_experts" in info["source"]


@cache
def _no_work(func: Any) -> bool:
    """Shapes and storages that change hands; reads and collectives are reported where they happen."""
    moves_none = func.is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket is torch.ops.aten.set_
    return moves_none or func in tracker.READS or func.namespace == "c10d"


def _count_tensors(values: tuple) -> int:
    return sum(
        1
        if isinstance(value, torch.Tensor)
        else _count_tensors(tuple(value))
        if isinstance(value, (list, tuple))
        else 0
        for value in values
    )


def attention_workspace(args: tuple) -> int:
    """Bytes the fused attention kernel keeps with an explicit mask: 4 x heads x rows x keys (port pages); 0 without."""
    q, k = args[0], args[1]
    mask = args[3] if len(args) > 3 else None
    return 4 * q.shape[:-1].numel() * k.shape[-2] if isinstance(mask, torch.Tensor) else 0
