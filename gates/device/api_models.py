# SPDX-License-Identifier: Apache-2.0
"""API checks 1-5: server and models."""

from __future__ import annotations

from gates.core.client import ServerTrouble
from gates.core.suite import Api, Suite, expect

SUITE = Suite("api-models", "health, version, model list, unknown names")


@SUITE.check(1, "health answers 200")
def _health(api: Api) -> None:
    expect(api.client.request("GET", "/health").status == 200, "health is not 200")


@SUITE.check(2, "the model list names the served model")
def _models(api: Api) -> None:
    listed = api.client.ok("GET", "/v1/models")
    if not isinstance(listed.get("data"), list):
        raise ServerTrouble(f"no list of models: {str(listed)[:80]}", where="GET /v1/models", action="is this vLLM?")
    expect(listed.get("object") == "list" and listed["data"][0].get("id") == api.client.model, f"odd list: {listed}")


@SUITE.check(3, "an unknown model is a 404")
def _unknown(api: Api) -> None:
    api.refused({**api.body(), "model": "no-such-model"}, status=(404,))


@SUITE.check(4, "an unknown route is a 404")
def _route(api: Api) -> None:
    expect(api.client.request("GET", "/v1/no-such-route").status == 404, "not a 404")


@SUITE.check(5, "the version is a string")
def _version(api: Api) -> None:
    version = api.client.ok("GET", "/version").get("version")
    expect(isinstance(version, str) and version, f"version is {version!r}")


GATE = SUITE.gate("silent-version", "html-server")
