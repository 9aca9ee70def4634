"""Connections of a policy server that have not shown its token yet. They cannot use up the process's descriptors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["Strangers", "counted"]

MAX_STRANGERS = 4096


class Strangers:
    """The connections without a token so far. A new one beyond half of the descriptors closes the oldest.

    An honest client sends its first request at once, so it is a stranger for a few turns of the event loop only.
    """

    def __init__(self) -> None:
        self.most = min(max(_descriptors() // 2, 16), MAX_STRANGERS)
        self._connections: dict[Any, asyncio.Transport] = {}  # peer -> connection, the oldest first

    def add(self, peer: Any, connection: asyncio.Transport) -> None:
        """Add a new connection."""
        self._connections[peer] = connection
        if len(self._connections) > self.most:
            self._connections.pop(next(iter(self._connections))).abort()

    def remove(self, peer: Any) -> None:
        """Remove a connection that has shown the token, or has ended."""
        self._connections.pop(peer, None)


def counted(protocol: Any, strangers: Strangers) -> Callable[..., asyncio.Protocol]:
    """Return a class of uvicorn's connections that are strangers at first."""

    class Counted(protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            strangers.add(self.client, transport)

        def connection_lost(self, exc: Exception | None) -> None:
            strangers.remove(self.client)
            super().connection_lost(exc)

    return Counted


def _descriptors() -> int:
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return 2 * MAX_STRANGERS
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2 * MAX_STRANGERS if soft == resource.RLIM_INFINITY else soft
