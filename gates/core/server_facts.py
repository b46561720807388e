# SPDX-License-Identifier: Apache-2.0
"""What a server tells about itself: version, lock hash, model, metrics. Absent facts are None, never guessed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from gates.core.client import BadStatus, Client, ServerTrouble, offered
from gates.core.errors import GateError
from gates.core.result import plain

_LABELS = r'(?:[^"}]|"(?:[^"\\]|\\.)*")*'
# Behind the value there may be a time and, in OpenMetrics, an exemplar.
_SAMPLE = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABELS})\}})?\s+(\S+)(?:\s+[\d.]+)?(?:\s+#\s.*)?$")
RUNNING = "vllm:num_requests_running"  # the gauge of requests under way
CACHE = "vllm:cache_config_info"  # its labels tell of each engine's KV cache
STEADY = ("root", "parent", "quantization", "chat_template_sha256", "state_hash")
_LOCK = re.compile(r"\+frontier\.([0-9a-f]{8,64})")


@dataclass(frozen=True)
class ServerFacts:
    """Identity of the server under test, written into the ledger's run header.

    Attributes:
        version: `/version`, as told.
        lock_hash: the distribution's lock hash, from the version's local part; None on another build.
        model: served model name.
        max_model_len: longest context in tokens, where `/v1/models` tells.
        model_card: what else its card tells that stays while the server is up (`STEADY`): a run is gone on with, and a
            record found again, by it.
    """

    version: str | None
    lock_hash: str | None
    model: str
    max_model_len: int | None
    model_card: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(client: Client) -> ServerFacts:
    """Ask the server who it is.

    Raises:
        ServerTrouble: `/v1/models` does not answer; everything else is optional.
        GateError: the model that was chosen is not listed.
    """
    cards = client.models()
    card = plain(next((card for card in cards if card["id"] == client.model), None))
    if card is None:
        listed = ", ".join(plain(c["id"]) for c in cards)
        raise GateError(f"the server has no model `{plain(client.model)}`", action=f"choose of: {listed}")
    told = _version(client)
    version = plain(told) if isinstance(told, str) else None
    found = _LOCK.search(version or "")
    length = card.get("max_model_len")
    rest = {k: v for k, v in card.items() if k in STEADY}
    return ServerFacts(
        version=version,
        lock_hash=found.group(1) if found else None,
        model=plain(client.model),
        max_model_len=length if type(length) is int and length > 0 else None,
        model_card=rest,
    )


def _version(client: Client) -> Any:
    try:
        reply = client.request("GET", "/version")
    except ServerTrouble:  # a gateway may not pass it on
        return None
    return reply.data.get("version") if reply.status == 200 and isinstance(reply.data, dict) else None


def _metrics_page(client: Client) -> str | None:
    reply = client.request("GET", "/metrics")
    if reply.status >= 500 and offered(reply.status):
        raise BadStatus(reply.status, reply.text, "GET /metrics")
    return reply.text if reply.status == 200 else None


def metrics(client: Client) -> dict[str, float] | None:
    """`/metrics` summed over labels, by metric name; None where the server shows no such page.

    Raises:
        ServerTrouble: it failed to.
    """
    page = _metrics_page(client)
    if page is None:
        return None
    totals: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        match = _SAMPLE.match(line.strip())
        if not match:
            continue
        try:
            totals[match[1]] = totals.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
    return totals


def metric_labels(client: Client, name: str) -> list[dict[str, str]]:
    """The label sets under which one metric is reported (e.g. `vllm:cache_config_info`)."""
    out = []
    for line in (_metrics_page(client) or "").splitlines():
        match = _SAMPLE.match(line.strip())
        if match and match[1] == name:
            out.append(dict(re.findall(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', match[2] or "")))
    return out
