"""The server of a live page, on this machine only: the page, what is new, and details of episodes.

1. It listens on 127.0.0.1, answers only requests whose `Host` is its own address, and refuses those that a page of
   another site sends. So no other machine, and no web page, can read the runs.
2. It reads the folders that it was given, and no path comes from a request.
"""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from llm_envs.errors import InvalidConfigError
from llm_envs.report.feed import MAX_AT_ONCE, Feed
from llm_envs.report.site import page_parts

__all__ = ["LiveServer"]

IDLE_S = 0.5
"""Seconds between two looks at the folders when nothing was new."""


class LiveServer:
    """Serves a feed while its block lasts.

    Args:
        feed: The runs.
        port: The port; 0 takes a free one.

    Raises:
        InvalidConfigError: If the port is taken.
    """

    def __init__(self, feed: Feed, port: int = 0) -> None:
        self.feed = feed
        page = "".join(page_parts(feed.title, {"index": feed.frame(), "shared": {}, "tokens": {}}, asks=True)).encode()

        class Handler(_Handler):
            hosts: frozenset[str] = frozenset()

        Handler.feed, Handler.page = feed, page
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise InvalidConfigError(f"--port {port} cannot be used ({error.strerror}): give another.") from error
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        Handler.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self.url = f"http://127.0.0.1:{port}/"
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="llm-envs-watch", daemon=True),
            threading.Thread(target=self._read, name="llm-envs-watch-reader", daemon=True),
        ]

    def _read(self) -> None:
        while not self._ended.is_set():
            if not self.feed.read():
                self._ended.wait(IDLE_S)
            else:
                self._ended.wait(0.001)  # so that an answer gets the lock

    def __enter__(self) -> LiveServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    feed: Feed
    page: bytes
    hosts: frozenset[str]
    timeout = 60

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.hosts or self._is_of_another_site():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"This page is only for the machine that serves it.\n")
            return
        address = urlsplit(self.path)
        asked = dict(parse_qsl(address.query[:4000]))
        if address.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.page)
        elif address.path == "/feed":
            self._send_json(self.feed.answer(asked))
        elif address.path == "/episodes":
            wanted = [part for part in asked.get("of", "").split(",") if part.isascii() and part.isdecimal()]
            self._send_json(self.feed.episodes([int(part) for part in wanted[:MAX_AT_ONCE] if len(part) < 12]))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"This address is unknown.\n")

    def _is_of_another_site(self) -> bool:
        return self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")

    def _send_json(self, value: Any) -> None:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        self._send(HTTPStatus.OK, "application/json", text.encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page asks every second."""
