# SPDX-License-Identifier: Apache-2.0
"""API checks 1-5: server and models."""

from __future__ import annotations

from gates.core.client import offered
from gates.core.errors import Skip
from gates.core.suite import Api, Suite, expect

SUITE = Suite("api-models", "health, version, model list, unknown names")


@SUITE.check(1, "health answers 200")
def _health(api: Api) -> None:
    expect(api.get("/health").status == 200, "health is not 200")


@SUITE.check(2, "the model list names the served model")
def _models(api: Api) -> None:
    names = [card["id"] for card in api.client.models()]
    expect(api.client.model in names, f"`{api.client.model}` is not among {names}")
    listed = api.client.ok("GET", "/v1/models")
    expect(listed.get("object") == "list", f"object is {listed.get('object')!r}")


@SUITE.check(3, "an unknown model is a 404")
def _unknown(api: Api) -> None:
    api.refused({**api.body(), "model": "no-such-model"}, status=(404,))


@SUITE.check(4, "an unknown route is a 404")
def _route(api: Api) -> None:
    expect(api.get("/v1/no-such-route").status == 404, "not a 404")


@SUITE.check(5, "the version is a string")
def _version(api: Api) -> None:
    reply = api.get("/version")
    if not offered(reply.status):
        raise Skip("the server has no /version")
    expect(reply.status == 200, f"status {reply.status}")
    version = reply.json().get("version")
    expect(isinstance(version, str) and version, f"version is {version!r}")


GATE = SUITE.gate("silent-version", "html-server")
