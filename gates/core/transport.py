# SPDX-License-Identifier: Apache-2.0
"""httpx's transport with a total deadline, kept at the socket: connecting, sending, headers and body all count.

httpx's own timeouts start anew with every read, so a server that drips a header line now and then would hold a request
for ever. Sockets are read and written by the thread that asks, so its deadline is a property of the thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

from gates.core.errors import GateError

PIECE = 1 << 16  # bytes a write hands over at a time, so that a reader which stalls is noticed

_here = threading.local()


@contextlib.contextmanager
def until(moment: float) -> Iterator[None]:
    """Let no socket call of this thread last past `moment` (time.monotonic(), seconds) while the block runs."""
    before = getattr(_here, "until", None)
    _here.until = moment if before is None else min(before, moment)
    try:
        yield
    finally:
        _here.until = before


def _left(timeout: float | None, late: type[httpcore.TimeoutException]) -> float | None:
    end = getattr(_here, "until", None)
    if end is None:
        return timeout
    left = end - time.monotonic()
    if left <= 0:
        raise late("past the deadline")
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    """A socket whose every call ends at the thread's deadline."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            self._inner.write(buffer[start : start + PIECE], _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


@functools.cache
def _authorities() -> ssl.SSLContext:
    """Raises GateError: what the environment names holds no certificates."""
    try:
        return httpx.create_ssl_context(trust_env=True)
    except OSError as error:  # of which SSLError is one
        name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")
        where = f"${name} {os.environ[name]}" if name else "certifi"
        raise GateError(f"no certificates ({error})", where=where, action="check the path, or unset it") from error


class DeadlineTransport(httpx.HTTPTransport):
    """A transport without proxies and without a limit of connections, which its callers bound.

    Every request has a connection of its own: a server may close an idle one in the moment it is used again, and that
    must not look like a dead server. SSL_CERT_FILE and SSL_CERT_DIR name another authority, as usual.
    """

    def __init__(self) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.ConnectionPool(
            ssl_context=_authorities(),
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=_Backend(),
        )
