"""An API key never follows a redirect to another host or port. Two real servers: one redirects to the other."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("httpx2")

from llm_envs.errors import LLMEnvsError
from llm_envs.policies.vllm.control import VLLMControl
from llm_envs.policies.vllm.http import AsyncClients, bearer

KEY = "sk-very-secret-key"


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers everything by an empty object, and keeps the headers that it was sent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    seen: list[str]
    location = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(str(self.headers))
        self.send_response(307 if self.location else 200)
        if self.location:
            self.send_header("Location", self.location)
        self.send_header("Content-Length", "0" if self.location else "2")
        self.end_headers()
        if not self.location:
            self.wfile.write(b"{}")

    do_GET = do_POST
    do_DELETE = do_POST

    def log_message(self, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def serving(location: str = "", host: str = "127.0.0.1") -> Iterator[tuple[str, list[str]]]:
    """Give the address of a server and what it is sent."""
    handler = type("Handler", (Recorder,), {"seen": [], "location": location})
    with http.server.ThreadingHTTPServer((host, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://{host}:{server.server_port}", handler.seen
        server.shutdown()


@pytest.fixture(params=["another port", "another host"])
def servers(request):
    """The first redirects to the second; `localhost` is another host than 127.0.0.1, whose names differ."""
    with serving() as (url, seen):
        location = url if request.param == "another port" else url.replace("127.0.0.1", "localhost")
        with serving(f"{location}/elsewhere") as (first, seen_first):
            yield first, seen_first, seen


def test_of_a_policy(servers):
    first, seen_first, seen = servers

    async def ask():
        clients = AsyncClients(bearer(KEY), 2, use_proxy=False)
        await clients.post(f"{first}/v1/completions", {"prompt": [1]})
        assert await clients.get(f"{first}/health", 30) is not None
        await clients.aclose()

    asyncio.run(ask())
    assert len(seen_first) == len(seen) == 2
    assert all(KEY in headers for headers in seen_first)
    assert not any(KEY in headers for headers in seen)


def test_of_the_control_of_a_server(servers):
    first, seen_first, seen = servers
    control = VLLMControl(bearer(KEY), use_proxy=False)
    control.ask(f"{first}/v1/models")
    control.ask(f"{first}/collective_rpc", {"method": "x"})
    assert len(seen_first) == len(seen) == 2
    assert all(KEY in headers for headers in seen_first)
    assert not any(KEY in headers for headers in seen)


def test_of_an_mcp_server_whatever_the_header_is_called(servers):
    pytest.importorskip("mcp")
    from llm_envs.tools.mcp import mcp_tools

    first, seen_first, seen = servers
    with pytest.raises(LLMEnvsError):  # the servers speak no MCP
        mcp_tools(url=f"{first}/mcp", headers={"X-Api-Key": KEY, "Authorization": f"Bearer {KEY}"}).open()
    assert all(headers.count(KEY) == 2 for headers in seen_first)
    assert seen_first and not seen, "the client does not follow it"
