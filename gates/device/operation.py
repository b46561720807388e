# SPDX-License-Identifier: Apache-2.0
"""What a server tells of its own state: loaded-state hash, compiles after ready, KV blocks. Absent facts are SKIPs."""

from __future__ import annotations

import hashlib
import json

from gates.core import server_facts, server_log
from gates.core.errors import GateError
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult, Measurement, Verdict

COMPILES = ("vllm_gaudi:compiles_after_ready_total", "hpusim:compiles_after_ready_total")
CACHE = "vllm:cache_config_info"


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
    key = json.dumps([ctx.facts.model, ctx.facts.lock_hash])
    path = ctx.cache_dir / f"state-{hashlib.sha256(key.encode()).hexdigest()[:16]}.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(told))
        return GateResult("loader-state", Verdict.PASS, details={"state_hash": told, "recorded": str(path)})
    known = path.read_text().strip()
    same = known == told
    reason = "" if same else f"loaded state {told} differs from the recorded {known}"
    return GateResult("loader-state", Verdict.PASS if same else Verdict.FAIL, reason, details={"state_hash": told})


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
    labels = server_facts.metric_labels(ctx.client, CACHE)
    raw = labels[0].get("num_gpu_blocks") if labels else None
    if not raw or not raw.isdigit():
        raise Skip(f"the server reports no {CACHE}")
    key = json.dumps([ctx.facts.model, ctx.facts.max_model_len, labels[0].get("block_size")])
    path = ctx.cache_dir / f"blocks-{hashlib.sha256(key.encode()).hexdigest()[:16]}.txt"
    blocks = int(raw)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(raw)
    known = int(path.read_text())
    details = {"blocks": blocks, "block_size": labels[0].get("block_size"), "known": known}
    return judge(ctx, "kv-blocks", Measurement(blocks / known, "ratio"), details=details)


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
