# SPDX-License-Identifier: Apache-2.0
"""What a server tells of its own state: loaded-state hash, compiles after ready, KV blocks. Absent facts are SKIPs."""

from __future__ import annotations

import hashlib
from typing import Any

from gates.core import records, server_facts, server_log
from gates.core.errors import Failed, GateError, Skip
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement, Verdict

COMPILES = ("vllm_gaudi:compiles_after_ready_total", "hpusim:compiles_after_ready_total")
SETTINGS = ("block_size", "cache_dtype", "gpu_memory_utilization", "num_gpu_blocks_override")  # what its size is set by


def _state_hash(ctx: Context) -> str | None:
    """One hash over all ranks: from the log, where it is given and names each rank's, else from the model's card now.

    Raises:
        GateError: the log holds the hashes of some ranks only.
    """
    found = server_log.read(ctx.server_log) if ctx.server_log else None
    if found is None or not found.states:
        told = server_facts.read(ctx.client).model_card.get("state_hash")
        return str(told) if told else None
    if len(found.states) != found.ranks:
        raise GateError(
            f"state hashes of {len(found.states)} ranks of {found.ranks}",
            where=str(ctx.server_log),
            action="is it whole?",
        )
    return hashlib.sha256("".join(found.states[rank] for rank in sorted(found.states)).encode()).hexdigest()


def _state(ctx: Context) -> GateResult:
    told = _state_hash(ctx)
    if not told:
        raise Skip(
            "the server does not tell a state hash (start it with VLLM_GAUDI_FRONTIER_STATE_HASH=1, give --server-log)"
        )
    record = records.of(ctx, "loader-state", lock=ctx.facts.lock_hash)
    known = record.read(_hash)
    if known is None:
        return record.first(told, state_hash=told)
    same = known == told
    reason = "" if same else f"loaded state {told} differs from the recorded {known}"
    details = {"state_hash": told, "recorded": str(record.path)}
    return GateResult("loader-state", Verdict.PASS if same else Verdict.FAIL, reason, details=details)


def _hash(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no hash")
    return value


def _compiles(ctx: Context) -> GateResult:
    seen = server_facts.metrics(ctx.client) or {}
    name = next((n for n in COMPILES if n in seen), None)
    if name is None and ctx.server_log:
        found = server_log.read(ctx.server_log)
        if not found.ready:
            raise GateError(
                "the log does not say that the server is up", where=str(ctx.server_log), action="is it its log?"
            )
        if found.eager:
            raise Skip("the server runs eagerly: nothing is compiled")
        return judge(
            ctx, "compiles-after-ready", Measurement(len(found.cold), "count"), details={"cold": found.cold[:20]}
        )
    if name is None:
        raise Skip("the server reports no count of compiles after ready, and no --server-log is given")
    return judge(ctx, "compiles-after-ready", Measurement(seen[name], "count"), details={"metric": name})


def _blocks(ctx: Context) -> GateResult:
    labels = server_facts.metric_labels(ctx.client, server_facts.CACHE)  # a row an engine, where there are several
    told = [raw for row in labels if (raw := row.get("num_gpu_blocks", "")).isdecimal()]
    if not told:
        raise Skip(f"the server reports no {server_facts.CACHE}")
    if len(told) < len(labels):
        raise Failed(f"{len(labels) - len(told)} of {len(labels)} engines tell no number of KV blocks")
    blocks = min(map(int, told))
    if not blocks:
        raise Failed("the server has no KV blocks")
    settings = {name: labels[0].get(name) for name in SETTINGS}
    record = records.of(ctx, "kv-blocks", max_model_len=ctx.facts.max_model_len, **settings)
    recorded = record.read(_counts)
    details: dict[str, Any] = {"blocks": blocks, "engines": len(told), **settings}
    if recorded is None:
        return record.first([blocks, len(told)], **details)
    known, engines = recorded
    details |= {"known": known, "recorded": str(record.path)}
    if len(told) < engines:
        raise Failed(
            f"{len(told)} engines tell their KV blocks, {engines} did when they were recorded; if that is meant, "
            f"delete {record.path}"
        )
    return judge(ctx, "kv-blocks", Measurement(blocks / known, "ratio"), details=details)


def _counts(value: Any) -> tuple[int, int]:
    """The least number of blocks that an engine tells, and the number of engines; older records hold the blocks."""
    pair = value if isinstance(value, list) and len(value) == 2 else [value, 1]
    if not all(type(count) is int and count > 0 for count in pair):
        raise ValueError(f"{value!r} is no number of blocks and of engines")
    return pair[0], pair[1]


GATES = (
    Gate(
        "loader-state", "operation", "the hash of the loaded parameters is the recorded one", _state, ("other-weights",)
    ),
    Gate(
        "compiles-after-ready",
        "operation",
        "no graph is compiled after the server is ready",
        _compiles,
        ("late-compiles",),
    ),
    Gate("kv-blocks", "operation", "the KV cache has not shrunk against the recorded size", _blocks, ("shrunk-cache",)),
)
