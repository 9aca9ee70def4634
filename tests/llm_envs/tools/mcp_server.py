"""A small MCP server for the tests: `python mcp_server.py` speaks over standard input and output, `PORT` over HTTP."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("test", log_level="WARNING")
kept: dict[str, int] = {}
arrived: list[int] = []


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def remember(key: str) -> int:
    """Count how often a key was remembered."""
    kept[key] = kept.get(key, 0) + 1
    return kept[key]


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("not today")


@server.tool()
async def sleep(s: float) -> str:
    """Sleep."""
    await asyncio.sleep(s)
    return "slept"


@server.tool()
def crash() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def read(variable: str) -> str:
    """Read an environment variable."""
    return os.environ.get(variable, "unset")


@server.tool()
def pid() -> int:
    """Return the server's process id."""
    return os.getpid()


@server.tool()
def complain(n: int) -> str:
    """Write to standard error."""
    print("complaint " * n, file=sys.stderr, end="", flush=True)
    return "done"


@server.tool()
async def meet(n: int) -> str:
    """Wait until this has been called so often."""
    arrived.append(1)
    while len(arrived) < n:
        await asyncio.sleep(0.01)
    return "met"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
