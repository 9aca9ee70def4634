"""A tiny HTTP server on this machine for what a real one does not do on request: refuse, stall, drop, come back."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request."""

    path: str
    body: Any
    headers: Mapping[str, str]
    at_s: float


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drop: bool = False
    """Close the connection without an answer."""


Respond = Callable[[Asked, int], Answer]
"""The request, and how many with this path came before it -> the answer."""


class FakeServer:
    """What came, and where it is. `respond` may be replaced while it runs."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.asked: list[Asked] = []
        self.url = ""
        self._lock = threading.Lock()

    def paths(self, path: str) -> list[Asked]:
        """Return the requests of one path so far."""
        return [asked for asked in self.asked if asked.path == path]

    def answer(self, asked: Asked) -> Answer:
        """Enter a request and decide about it."""
        with self._lock:
            n_before = len(self.paths(asked.path))
            self.asked.append(asked)
        return self.respond(asked, n_before)


@contextmanager
def fake_server(respond: Respond, port: int = 0) -> Iterator[FakeServer]:
    """Run a server in a thread; leaving the block ends it."""
    fake = FakeServer(respond)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the body waits 40 ms for the header's acknowledgement

        def do_GET(self) -> None:
            self._serve(None)

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            self._serve(json.loads(self.rfile.read(length) or b"null"))

        def _serve(self, body: Any) -> None:
            answer = fake.answer(Asked(self.path.split("?")[0], body, dict(self.headers), time.monotonic()))
            time.sleep(answer.delay_s)
            if answer.drop:
                self.close_connection = True
                return
            data = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data.encode())))
                self.end_headers()
                self.wfile.write(data.encode())
            except OSError:  # the client has gone away
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False  # a request that stalls on purpose is not waited for
        allow_reuse_address = True
        request_queue_size = 128  # by default 5: the connections of further turns that begin together are reset

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # else the client has gone away
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", port), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(ids: list[int], **changes: Any) -> Answer:
    """Return vLLM's answer to a request for tokens, each with the log-probability -0.5."""
    choice = {
        "token_ids": ids,
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
        "finish_reason": "stop",
        "stop_reason": None,
    }
    return Answer(body={"choices": [choice | changes]})


def vllm_answers(tokenizer: Any, sample: Respond, *, process: str = "1", tag: str = "default", **model: Any) -> Respond:
    """Return what a `vllm serve` in developer mode says about itself; requests for tokens go to `sample`.

    With `max_lora_rank` it takes adapters.
    """
    served = {"id": "m", "root": "m", "max_model_len": 64} | model
    config = {
        "instance_id": process,
        "model_config": {"logprobs_mode": served.pop("logprobs_mode", "processed_logprobs")},
        "device_config": {"device": "cuda"},
        "parallel_config": {"worker_extension_cls": served.pop("extension", "")},
    }
    if (rank := served.pop("max_lora_rank", None)) is not None:
        config["lora_config"] = {"max_lora_rank": rank}
    tags, adapters = [tag], dict[str, str]()

    def respond(asked: Asked, n_before: int) -> Answer:
        if asked.path == "/v1/completions":
            return sample(asked, n_before)
        if asked.path == "/tokenize":
            return Answer(body={"tokens": tokenizer(asked.body["prompt"], add_special_tokens=False)["input_ids"]})
        if asked.path == "/update_weight_version":
            tags.append(asked.body["new_version"])
        if asked.path == "/v1/load_lora_adapter" and rank is not None:
            adapters[asked.body["lora_name"]] = asked.body["lora_path"]
            return Answer(body="Success: the adapter was added.")  # a text, as vLLM's
        if asked.path == "/v1/unload_lora_adapter" and adapters.pop(asked.body["lora_name"], None):
            return Answer(body="Success: the adapter was removed.")
        known: dict[str, Any] = {
            "/v1/models": {"data": [served, *({"id": name, "root": path} for name, path in adapters.items())]},
            "/server_info": {"vllm_config": config},
            "/weight_info": {"weight_version": tags[-1]},
            "/health": "",
        }
        changes = ("/pause", "/resume", "/collective_rpc", "/update_weight_version")
        if asked.path in known or asked.path in changes:
            return Answer(body=known.get(asked.path, {}))
        return Answer(404, {"detail": "Not Found"})

    return respond
