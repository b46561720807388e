# SPDX-License-Identifier: Apache-2.0
"""The faulty server: a loopback proxy in front of a good server that applies one fault to everything."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import zip_longest
from typing import Any

import httpx

from gates.controls.faults import Fault
from gates.controls.toy_server import start


def serve(upstream: str, fault: Fault) -> tuple[ThreadingHTTPServer, str]:
    """Proxy `upstream` with a fault on a free loopback port; returns the server and its address."""
    busy = threading.Semaphore(fault.most_at_once or 10**6)
    http = httpx.Client(base_url=upstream, timeout=120.0, trust_env=False)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Requests are not logged."""

        def _send(self, status: int, kind: str, raw: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def _spoil(self, method: str, raw: bytes) -> None:
            if not busy.acquire(blocking=False):
                self._send(500, "text/plain", b"Internal Server Error")
                return
            try:
                self._exchange(method, raw)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                busy.release()

        def _exchange(self, method: str, raw: bytes) -> None:
            try:
                decoded = json.loads(raw) if raw else {}
            except ValueError:
                decoded = None
            body = decoded if isinstance(decoded, dict) else {}
            if fault.raw and (made := fault.raw(self.path, body)):
                self._send(*made)
                return
            if fault.request and body:
                raw = json.dumps(fault.request(self.path, body)).encode()
            with http.stream(method, self.path, content=raw, headers={"Content-Type": "application/json"}) as answer:
                kind = answer.headers.get("content-type", "")
                if "event-stream" in kind:
                    self._events(body, answer)
                    return
                answer.read()
            if fault.reply and answer.status_code == 200 and "json" in kind and method == "POST":
                self._send(200, kind, json.dumps(fault.reply(self.path, body, answer.json())).encode())
            elif fault.told and method == "GET" and "json" in kind and answer.content:
                self._send(answer.status_code, kind, json.dumps(fault.told(self.path, answer.json())).encode())
            elif fault.page and "text/plain" in kind:
                self._send(answer.status_code, kind, fault.page(self.path, answer.text).encode())
            else:
                self._send(answer.status_code, kind, answer.content)

        def _events(self, body: dict[str, Any], answer: httpx.Response) -> None:
            """Pass a stream on; one that is changed as a whole comes late, but at the pace it was made."""
            begun, lines, times = time.monotonic(), [], []
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    lines.append(line[5:].strip())
                    times.append(time.monotonic() - begun)
            done = "[DONE]" in lines
            chunks = [json.loads(line) for line in lines if line != "[DONE]"]
            if fault.chunks:
                chunks = fault.chunks(self.path, body, chunks)
            if fault.torn:
                chunks, done = chunks[: max(1, len(chunks) // 2)], False
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            begun = time.monotonic()
            for chunk, due in zip_longest(chunks, times[: len(chunks)], fillvalue=0.0):
                time.sleep(max(0.0, begun + due - time.monotonic()))
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if done:
                self.wfile.write(b"data: [DONE]\n\n")

        def do_GET(self) -> None:
            self._spoil("GET", b"")

        def do_POST(self) -> None:
            self._spoil("POST", self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    return start(Handler)
