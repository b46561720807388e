# SPDX-License-Identifier: Apache-2.0
"""A stand-in OpenAI-compatible server around the toy model, for the gates' own tests. One thread a request.

It behaves as the gates expect of a good server (reasoning apart, forced tools, structured outputs, log probabilities,
usage, client errors), so that a gate that is red on it is wrong, and one that is green on a spoiled copy is blind.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gates.controls.toy_chat import BadRequest, Turn, chat_chunks, chat_reply, responses_events, responses_reply, turns
from gates.controls.toy_model import ToyModel

MODEL, CONTEXT = "toy", 4096
CARD = {"id": MODEL, "object": "model", "max_model_len": CONTEXT, "state_hash": "1" * 64}
BYTE_CHARS = [bytes([i]).decode("latin-1") for i in range(256)]


class ToyState:
    """Counters shared by all requests of one server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counters = {"vllm:num_preemptions_total": 0.0, "vllm:num_requests_running": 0.0}

    def page(self) -> str:
        lines = [f"{name} {value}" for name, value in self.counters.items()]
        lines.append('vllm:cache_config_info{block_size="128",num_gpu_blocks="64"} 1.0')
        lines.append("hpusim:compiles_after_ready_total 0.0")
        return "\n".join(lines) + "\n"


def _text(prompt: Any) -> bytes:
    if isinstance(prompt, list) and all(isinstance(t, int) for t in prompt):
        return bytes(t % 256 for t in prompt)
    if isinstance(prompt, str):
        return prompt.encode()
    raise BadRequest("`prompt` is neither text nor token ids")


def complete(model: ToyModel, body: dict[str, Any]) -> dict[str, Any]:
    """A plain completion of the toy model."""
    text = _text(body.get("prompt"))
    limit = int(body.get("max_tokens", 16))
    if len(text) + limit > CONTEXT:
        raise BadRequest(f"{len(text)} + {limit} tokens exceed the context of {CONTEXT}")
    bias = {int(k): float(v) for k, v in (body.get("logit_bias") or {}).items()}
    greedy = float(body.get("temperature", 1)) == 0 or body.get("top_k") == 1
    stops = [body["stop"]] if isinstance(body.get("stop"), str) else list(body.get("stop") or [])
    frequency, presence = (float(body.get(f"{name}_penalty") or 0) for name in ("frequency", "presence"))
    made: list[int] = []
    scores: list[float] = []
    finish = "length"
    while len(made) < limit:
        here = text + bytes(made)
        if bias:
            token = max(bias, key=bias.__getitem__)
        elif (frequency or presence) and made:
            table = model.distribution(here)
            token = max(table, key=lambda t: table[t] - frequency * made.count(t) - presence * (t in made))
        elif greedy:
            token = model.greedy(here)
        else:
            token = model.sample(here, int(body.get("seed") or 0), len(made), body)
        made.append(token)
        scores.append(model.logprob(here, token))
        if token in (body.get("stop_token_ids") or []):
            finish = "stop"
            break
        tail = bytes(made).decode("latin-1")
        if any(stop in tail for stop in stops):
            finish = "stop"
            break
    out = bytes(made).decode("latin-1")
    for stop in stops:
        if stop in out:
            out = out[: out.index(stop) + (len(stop) if body.get("include_stop_str_in_output") else 0)]
    choice: dict[str, Any] = {"index": 0, "text": out, "finish_reason": finish}
    if body.get("logprobs") is not None:
        names = [f"token_id:{t}" if body.get("return_tokens_as_token_ids") else c for t, c in enumerate(BYTE_CHARS)]
        listed = []
        for place, token in enumerate(made):
            table = model.distribution(text + bytes(made[:place]))
            top = sorted(table, key=lambda t: -table[t])[: int(body["logprobs"])]
            listed.append({names[t]: table[t] for t in top} | {names[token]: scores[place]})
        choice["logprobs"] = {
            "tokens": [names[t] for t in made],
            "token_logprobs": scores,
            "top_logprobs": listed,
        }
    if body.get("prompt_logprobs") is not None:
        rows: list[dict[str, Any] | None] = [None]
        for i in range(1, len(text)):
            table = dict(list(model.distribution(text[:i]).items())[: int(body["prompt_logprobs"])])
            table[text[i]] = model.logprob(text[:i], text[i])
            rows.append({str(k): {"logprob": v} for k, v in table.items()})
        choice["prompt_logprobs"] = rows
    usage = {"prompt_tokens": len(text), "completion_tokens": len(made), "total_tokens": len(text) + len(made)}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": MODEL,
        "created": 1,
        "choices": [choice],
        "usage": usage,
    }


class Handler(BaseHTTPRequestHandler):
    """Routes of the stand-in server."""

    protocol_version = "HTTP/1.1"
    model = ToyModel()
    state = ToyState()

    def log_message(self, *args: Any) -> None:
        """Requests are not logged."""

    def _send(self, status: int, data: Any, kind: str = "application/json") -> None:
        raw = data.encode() if isinstance(data, str) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _events(self, events: list[Any], done: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if done:
            self.wfile.write(b"data: [DONE]\n\n")

    def handle(self) -> None:
        """One connection; a client that hangs up is none of the server's troubles."""
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_GET(self) -> None:
        routes = {
            "/health": lambda: self._send(200, ""),
            "/version": lambda: self._send(200, {"version": "0.26.0+frontier.0123456789ab"}),
            "/metrics": lambda: self._send(200, self.state.page(), "text/plain"),
            "/v1/models": lambda: self._send(200, {"object": "list", "data": [CARD]}),
        }
        routes.get(self.path, lambda: self._send(404, {"error": {"message": "no such route"}}))()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw)
            if not isinstance(body, dict):
                raise BadRequest("the body is not an object")
            if body.get("model", MODEL) != MODEL:
                self._send(404, {"error": {"message": f"no model {body['model']!r}"}})
                return
            self._post(body)
        except (BadRequest, ValueError) as error:
            self._send(400, {"error": {"message": str(error), "type": "BadRequestError"}})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _post(self, body: dict[str, Any]) -> None:
        if self.path == "/tokenize":
            self._send(200, {"tokens": list(_text(body.get("prompt")))})
        elif self.path == "/v1/completions":
            with self.state.lock:
                self.state.counters["vllm:num_preemptions_total"] += 1
            answer = complete(self.model, body)
            if body.get("stream"):
                self._events(
                    [
                        {**answer, "choices": [{**answer["choices"][0], "text": c}]}
                        for c in answer["choices"][0]["text"]
                    ],
                    True,
                )
            else:
                self._send(200, answer)
        elif self.path == "/v1/chat/completions":
            made: list[Turn] = turns(self.model, body)
            if body.get("stream"):
                self._events(chat_chunks(made, body, MODEL), True)
            else:
                self._send(200, chat_reply(made, body, MODEL))
        elif self.path == "/v1/responses":
            if body.get("stream"):
                self._events(responses_events(self.model, body, MODEL), False)
            else:
                self._send(200, responses_reply(self.model, body, MODEL))
        else:
            self._send(404, {"error": {"message": "no such route"}})


class Server(ThreadingHTTPServer):
    """With room for the connections that a gate opens at once; the standard library keeps five waiting."""

    request_queue_size = 128


def start(handler: type[BaseHTTPRequestHandler] = Handler) -> tuple[ThreadingHTTPServer, str]:
    """Serve on a free loopback port in a daemon thread; returns the server and its address."""
    server = Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"
