"""Tools from an MCP server, with the official client.

    with mcp_tools("uvx", ["mcp-server-time"]) as time_tools:
        results = run_calls({tool.name: tool for tool in time_tools.tools()}, calls)

In a task, where each environment makes its own:

    def make_tools(self):
        return [mcp_tools("uvx", ["mcp-server-time"])]

1. A connection lives in one task of the background loop, which opens and closes it; calls are separate tasks.
2. It is opened when first needed. A broken connection is replaced by the next `reset` or `open`, never in the middle of
   an episode: a server that crashed has lost its state.
3. Only code on the loop decides which connection is the current one.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO
from urllib.parse import parse_qsl, quote, urlsplit

import numpy as np

from llm_envs.errors import BridgeError, InvalidActionError, InvalidConfigError, extra_needed, public_address
from llm_envs.tools.background_loop import LimitReached, is_present, wait
from llm_envs.tools.base import Tool
from llm_envs.tools.toolset import Toolset

__all__ = ["McpToolset", "mcp_tools"]

_CLOSE_S = 10.0
"""Longer than the client takes to end an unwilling server: it waits, asks and kills, 2 seconds each."""
_GONE = "the tool's server has gone away"
"""The model reads this, so it contains no command line."""
_MAX_PAGES = 100
_SHORTEST_SECRET = 6
"""Shorter values are words, not secrets."""
_TAIL = 500
"""Characters of a server's error output that a message quotes."""


def mcp_tools(
    command: str | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float | None = 60.0,
    connect_timeout_s: float = 120.0,
    include: Collection[str] | None = None,
    parallel: bool = True,
    shared: bool = False,
    restart: bool = False,
) -> McpToolset:
    """Return the tools of an MCP server: one that is started by a command, or one at an address.

    Args:
        command: Program of a server that uses its standard input and output.
        args: Its arguments.
        env: Environment variables for it, besides the few that the client passes on.
        url: Instead of a command: address of a server with streamable HTTP.
        headers: Sent with each request to `url`.
        cwd: The started server's working directory.
        timeout_s: Seconds that one call may take; None takes the caller's limit.
        connect_timeout_s: Seconds that starting or reaching the server may take.
        include: Names of the tools to use; None uses all.
        parallel: Whether calls of one turn run in parallel. Not for calls that change what the next one sees.
        shared: Whether several environments may use it at once, for a server without state. Then none of them closes
            it.
        restart: Whether each episode gets a new connection, for a server with state; a server that is started by a
            command then starts anew.

    Raises:
        MissingExtraError: If the package `mcp` is not installed.
        InvalidConfigError: If not exactly one of `command` and `url` is given, or an option does not go with it.
    """
    if (command is None) == (url is None):
        raise InvalidConfigError(
            f"mcp_tools: command is {command!r} and url {url and public_address(url)!r}; give one of them."
        )
    if url is not None and (args or env or cwd):
        raise InvalidConfigError("mcp_tools: args, env and cwd are for a command, not for a url.")
    if command is not None and headers:
        raise InvalidConfigError("mcp_tools: headers are for a url, not for a command.")
    if shared and restart:
        raise InvalidConfigError("mcp_tools: a shared server cannot restart with each environment's episode.")
    if isinstance(args, str):
        raise InvalidConfigError("mcp_tools: args is a text; it must be a list.")
    _import_mcp()
    server = _Server(command, tuple(args), dict(env or {}), url, dict(headers or {}), cwd, connect_timeout_s)
    chosen = None if include is None else tuple(include)
    return McpToolset(
        server=server, timeout_s=timeout_s, include=chosen, parallel=parallel, shared=shared, restart=restart
    )


@dataclass(frozen=True, repr=False)
class _Server:
    """A server, and how to reach it."""

    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    url: str | None
    headers: Mapping[str, str]
    cwd: str | None
    connect_timeout_s: float

    def __repr__(self) -> str:
        return f"<MCP server {self}>"

    def __str__(self) -> str:
        """Name the server without what may be a secret: errors are stored with episodes."""
        if self.url is not None:
            return public_address(self.url)
        hidden = f" with {len(self.args)} arguments" if self.args else ""
        return f"{self.command}{hidden}"

    def without_secrets(self, text: str) -> str:
        """Return a text without the parts of an address, the arguments and the values that may be secrets.

        The first argument (a script, a package) and the names of options are kept, unless they are addresses.
        """
        if self.url is not None:
            text = text.replace(self.url, str(self)).replace(quote(self.url, safe="/:?=&"), str(self))
        secrets = [*self.env.values(), *_parts(self.url or "")]
        for value in self.headers.values():
            secrets += [value, value.rpartition(" ")[2]]
        for number, argument in enumerate(self.args):
            is_option = argument.startswith("-")
            if "://" in argument:
                secrets += [argument, *_parts(argument)]
            elif is_option or number:
                secrets.append(argument.partition("=")[2] if is_option else argument)
        for secret in sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


@dataclass(kw_only=True, eq=False, repr=False)
class McpToolset(Toolset):
    """The tools of one MCP server; made by `mcp_tools`. A context manager that closes the connection.

    The server's text for a call, or the error that it reports, is the call's result. A call to a server that has gone
    away is an error too, until `reset` or `open` reaches it again. Pickling keeps the settings, not the connection.
    """

    server: _Server
    timeout_s: float | None
    include: tuple[str, ...] | None
    parallel: bool
    shared: bool
    restart: bool
    _listed: list[tuple[str, str, dict[str, Any]]] | None = field(default=None, init=False)
    _connection: _Connection | None = field(default=None, init=False)
    _finalizer: weakref.finalize[[], McpToolset] | None = field(default=None, init=False)

    def open(self) -> None:
        """Reach the server, unless it is connected.

        Raises:
            BridgeError: If it cannot be started or reached, or does not speak the protocol.
        """
        try:
            connection = wait(self._connected(renew=True), self.server.connect_timeout_s + _CLOSE_S)
        except LimitReached:
            raise BridgeError(f"the MCP server {self.server} cannot be reached: the event loop is blocked.") from None
        self._listed = connection.listed

    def tools(self) -> list[Tool]:
        """Return the server's tools, newly made; connects first if necessary.

        Raises:
            BridgeError: If the server cannot be reached.
            InvalidConfigError: If a name in `include` is not one of its tools.
        """
        if self._listed is None:
            self.open()
        assert self._listed is not None
        names = [name for name, _, _ in self._listed]
        for name in self.include or ():
            if name not in names:
                known = ", ".join(names) or "none"
                raise InvalidConfigError(f"mcp_tools: {self.server} has no tool {name!r}; known are {known}.")
        options: dict[str, Any] = {"timeout_s": self.timeout_s, "parallel": self.parallel}
        return [
            self.own(Tool(partial(self.call, name), name=name, description=text, parameters=schema, **options))
            for name, text, schema in self._listed
            if self.include is None or name in self.include
        ]

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Reach the server again if it has gone away, or if each episode gets a new connection."""
        if self.restart:
            self.close()
        self.open()

    def close(self) -> None:
        """Close the connection; a server that was started ends."""
        if self._connection is not None:
            try:
                wait(self._disconnect(), _CLOSE_S)
            except LimitReached:
                self._connection = None

    def __enter__(self) -> McpToolset:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connection: a copy makes its own."""
        return self.__dict__ | {"_connection": None, "_finalizer": None}

    async def call(self, name: str, /, **arguments: Any) -> str:
        """Call one of the server's tools, on the background loop.

        Raises:
            InvalidActionError: If the server reports an error.
            BridgeError: If the server has gone away.
        """
        connection = await self._connected(renew=False)
        return await connection.call(name, arguments)

    async def _connected(self, *, renew: bool) -> _Connection:
        """Return the open connection; a broken one is replaced if `renew` allows it."""
        connection = self._connection
        if connection is not None and not connection.is_usable:
            if not renew:
                raise BridgeError(_GONE)
            connection.end()
            connection = None
        if connection is None:
            connection = self._connection = _Connection(self.server)
            if self._finalizer is not None:
                self._finalizer.detach()
            self._finalizer = weakref.finalize(self, connection.end)
        elif renew:
            connection.trim()
        try:
            await asyncio.shield(connection.ready)
        except BridgeError:
            self._connection = None
            raise
        return connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class _Connection:
    """One connection, from start to end. Made and used only on the loop, except for `end`."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.listed: list[tuple[str, str, dict[str, Any]]] = []
        self.is_broken = False
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._output: TextIO | None = None
        self._over = asyncio.Event()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ready.add_done_callback(lambda future: future.exception())  # the caller may be gone already
        self._task = self._loop.create_task(self._live())

    @property
    def is_usable(self) -> bool:
        """Whether it is open, or being opened, on the current loop."""
        return not self.is_broken and is_present(self._loop)

    def end(self) -> None:
        """Close the connection from any thread, without waiting."""
        if self._pid == os.getpid() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)

    async def close(self) -> None:
        self.end()
        if self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._task])

    def trim(self) -> None:
        """Discard the server's output to standard error so far, which may grow large during a run."""
        if self._output is not None and not self._output.closed:
            self._output.truncate(0)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        mcp = _import_mcp()
        try:
            result = await self._client.call_tool(name, arguments)
        except mcp.MCPError as error:
            if error.code != mcp.types.CONNECTION_CLOSED:
                raise
            self.is_broken = True
            raise BridgeError(_GONE) from error
        text = _text_of(result)
        if result.is_error:
            raise InvalidActionError(text)
        return text

    async def _live(self) -> None:
        """Open the connection, keep it open until the end, close it; report failures to the waiting callers."""
        with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as output:
            self._output = output
            try:
                async with AsyncExitStack() as stack:
                    try:
                        async with asyncio.timeout(self.server.connect_timeout_s):
                            transport = _transport(self.server, output)
                            self._client = await stack.enter_async_context(_import_mcp().Client(transport))
                            self.listed = await _list_tools(self._client)
                    except BaseException as error:
                        self.ready.set_exception(BridgeError(self._complaint(error, output)))
                        raise
                    self.ready.set_result(None)
                    await self._over.wait()
            except BaseException:
                pass  # the waiting callers have been told; any other end just closes the connection
            finally:
                self.is_broken = True

    def _complaint(self, error: BaseException, output: TextIO) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            reason = f"it did not answer within connect_timeout_s={self.server.connect_timeout_s:g} s"
        else:
            reason = self.server.without_secrets(f"{type(error).__name__}: {error}")
        output.seek(0)
        wrote = output.read().strip()
        said = f"{reason}; it wrote: {self.server.without_secrets(wrote)[-_TAIL:]}" if wrote else reason
        return f"the MCP server {self.server} cannot be reached: {said}"


def _parts(url: str) -> list[str]:
    """Return the user, the password, the query and its values of an address."""
    parts = urlsplit(url)
    return [parts.netloc.rpartition("@")[0], parts.password or "", parts.query, *(v for _, v in parse_qsl(parts.query))]


def _import_mcp() -> Any:
    with extra_needed("tools of an MCP server need `mcp`: pip install 'llm-envs[bridges]'."):
        import mcp
    return mcp


def _transport(server: _Server, output: TextIO) -> Any:
    """Return the client's transport to the server; a started server's standard error goes to `output`."""
    mcp = _import_mcp()
    if server.command is not None:
        parameters = mcp.StdioServerParameters(
            command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd
        )
        return mcp.stdio_client(parameters, errlog=output)
    return _http_transport(str(server.url), dict(server.headers))


@asynccontextmanager
async def _http_transport(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

    async with (
        create_mcp_http_client(headers=headers) as client,
        streamable_http_client(url, http_client=client) as pipe,
    ):
        yield pipe


async def _list_tools(client: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, description and schema of each tool of the server."""
    listed: list[tuple[str, str, dict[str, Any]]] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += [(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    return listed


def _text_of(result: Any) -> str:
    """Return a result as text; other content is only named."""
    parts = [_WRITTEN.get(block.type, _name_of)(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, default=str)
    return "\n".join(parts)


def _name_of(block: Any, kind: str = "") -> str:
    return f"[{kind or block.type}: {getattr(block, 'mime_type', None) or 'unknown'}]"


def _embedded(block: Any) -> str:
    text = getattr(block.resource, "text", None)
    return text if text is not None else _name_of(block.resource, "resource")


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "text": lambda block: block.text,
    "resource": _embedded,
    "resource_link": lambda block: f"[resource: {block.uri}]",
}
