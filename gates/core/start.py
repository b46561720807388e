# SPDX-License-Identifier: Apache-2.0
"""The first question to a server. What may be wrong with an address, a key or a certificate shows here, and says so."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from gates.core import server_facts
from gates.core.client import BadStatus, Client, ServerTrouble
from gates.core.errors import GateError
from gates.core.result import plain
from gates.core.server_facts import ServerFacts
from gates.core.transport import DeadlineTransport

FIRST_DEADLINE_S = 30.0  # a server that has nothing to do yet but to list its models


def ask(client: Client, say: Callable[[str], None]) -> ServerFacts:
    """Who the server is.

    Raises:
        ServerTrouble: it does not answer, or not as an OpenAI API does, with what to do next.
        GateError: the model that was chosen is not listed.
    """
    patience = client.deadline_s
    client.deadline_s = min(patience, FIRST_DEADLINE_S)
    say(f"asking {client.root} for its models (at most {client.deadline_s:g} s) ...")
    try:
        return server_facts.read(client)
    except ServerTrouble as error:
        raise ServerTrouble(error.what, where=f"{client.root}, {error.where}", action=_action(error, client)) from error
    finally:
        client.deadline_s = patience


def _action(error: ServerTrouble, client: Client) -> str:
    if "Hostname mismatch" in error.what or "IP address mismatch" in error.what:
        return "give the address by the name that its certificate is for"
    if "CERTIFICATE_VERIFY_FAILED" in error.what:
        return "name the file of the authority that signed its certificate in $SSL_CERT_FILE"
    if not isinstance(error, BadStatus):
        return error.action or "is this the address of an OpenAI API?"
    status = error.status
    if 300 <= status < 400:
        return f"it redirects to {_location(client)}: give the address that answers itself"
    if status in (401, 403):
        kind = "its key was refused: check it" if client.api_key else "it wants a key: give it"
        return f"{kind} ($GATES_API_KEY or --api-key)"
    if status == 429:
        return "it is too busy, or the key has no requests left: ask again later"
    if status >= 500:
        return "see the server's log"
    return "is this the address of an OpenAI API? give it without a path, or up to /v1"


def _location(client: Client) -> str:
    """Where the model list is said to lie, for the message."""
    try:
        with client.window(), httpx.Client(transport=DeadlineTransport(), auth=client.auth, trust_env=False) as http:
            told = http.get(f"{client.root}/v1/models").headers.get("location", "")
    except (httpx.HTTPError, GateError):
        told = ""
    return str(plain(told[:200])) or "an unnamed place"
