"""Workers on other machines: the connection to an environment server (`server`), and one worker there.

Both sides prove that they know the token and never send it, and every frame has a MAC (`frames`). So the server runs
only what a collector with the token sends, whatever lies between them. Nothing is encrypted: who can read the traffic
can read the episodes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from llm_envs import __version__
from llm_envs.errors import InvalidConfigError, WorkerDiedError
from llm_envs.processes import StartWatch
from llm_envs.rollout.workers.channel import Channel
from llm_envs.rollout.workers.frames import Frames, respond

__all__ = [
    "CONNECT_S",
    "TOKEN_VARIABLE",
    "EnvServers",
    "NoRoomError",
    "RemoteWorker",
    "keep_alive",
    "server_info",
    "split_address",
    "token_of",
]

_LOG = logging.getLogger(__name__)

TOKEN_VARIABLE = "LLM_ENVS_ENV_TOKEN"
"""The environment variable with the token, on both sides."""
CONNECT_S = 10.0
_MAX_INFO_BYTES = 4096
_MAX_AT_ONCE = 8
"""How many connections a process makes at once: the threads of a thousand episodes would overrun a server."""


class NoRoomError(WorkerDiedError):
    """A server answers, but all of its workers are in use."""


def token_of() -> bytes:
    """Return the token in the environment's variables.

    Raises:
        InvalidConfigError: If it is missing.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise InvalidConfigError(f"{TOKEN_VARIABLE} is not set: it needs the token of the environment servers.")
    return token.encode()


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port".

    Raises:
        InvalidConfigError: If it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InvalidConfigError(f"{address!r} is not an address: give HOST:PORT.")
    return host.strip("[]"), int(port)


def keep_alive(connection: socket.socket) -> None:
    """Notice a peer that has vanished, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def server_info(address: str, token: bytes) -> dict[str, Any]:
    """Return a server's number of workers (`n_workers`) and its version.

    Raises:
        InvalidConfigError: If it has another token or version.
        WorkerDiedError: If it does not answer.
    """
    connection, _, info = _ask(address, token, b"info")
    connection.close()
    return info


class RemoteWorker(Channel):
    """A worker process of an environment server. Closing the connection kills it.

    Args:
        address: "host:port".
        token: The server's.

    Raises:
        WorkerDiedError: If the server does not answer, or has no free worker.
        InvalidConfigError: If it has another token or version.
    """

    def __init__(self, address: str, token: bytes) -> None:
        self.address = address
        connection, key, info = _ask(address, token, b"worker")
        if not info.get("has_room"):
            connection.close()
            raise NoRoomError(f"{address} has no free worker (of {info.get('n_workers')})")
        super().__init__(connection, Frames(key, "worker", is_host=True))

    def watch(self) -> StartWatch:
        """Return a limit on the start."""
        return StartWatch(0)  # its progress cannot be seen from here

    def kill(self) -> None:
        """Close the connection; the server then kills the worker and all processes that it has started."""
        if not self.is_killed and os.getpid() == self._owner:
            self.is_killed = True
            with suppress(OSError):  # not closed: an event loop may be watching it
                self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> bool:
        """Release the connection."""
        self._socket.close()
        return True

    def reap(self, limit_s: float) -> bool:
        """Return True: the server waits for its processes."""
        return True

    def reset_after_fork(self) -> None:
        """Close the connection in a forked child; the parent has it still."""
        self._socket.close()

    def _has_ended(self) -> bool:
        return False

    def _ending(self) -> str:
        return f"the connection to {self.address} was lost"


class EnvServers:
    """Environment servers, with the token in the environment variable `TOKEN_VARIABLE`. Thread-safe.

    Servers that do not answer at the start are named in a warning and left out.

    Args:
        addresses: Each "host:port".

    Raises:
        InvalidConfigError: If a server is named twice, or has another token or version, or the variable is not set.
        WorkerDiedError: If no server answers.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        if len(set(addresses)) < len(addresses):
            raise InvalidConfigError(f"{', '.join(addresses)}: an environment server is named twice.")
        self._token = token_of()
        self._capacities: dict[str, int] = {}
        failures: list[WorkerDiedError] = []
        for address in addresses:
            try:
                self._capacities[address] = int(server_info(address, self._token)["n_workers"])
            except WorkerDiedError as error:
                failures.append(error)
        if not self._capacities:
            raise WorkerDiedError("; ".join(map(str, failures)))
        for failure in failures:
            _LOG.warning("%s. The run continues without it.", failure)
        self.answered_s = time.monotonic()
        """When a server last answered, on the monotonic clock."""
        self._running: list[tuple[str, weakref.ref[RemoteWorker]]] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Make new locks: in a forked child the old ones may be held for ever."""
        self._turns = threading.Semaphore(_MAX_AT_ONCE)
        self._lock = threading.Lock()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers that answered at the start."""
        return tuple(self._capacities)

    @property
    def n_workers(self) -> int:
        """Number of workers of all servers."""
        return sum(self._capacities.values())

    def connect(self) -> RemoteWorker:
        """Start a worker at the server with the largest share of free ones that answers."""
        with self._turns:
            return self._connect()

    def _connect(self) -> RemoteWorker:
        failures: list[WorkerDiedError] = []
        for address in self._by_room():
            try:
                worker = RemoteWorker(address, self._token)
            except WorkerDiedError as error:
                if isinstance(error, NoRoomError):
                    self.answered_s = time.monotonic()
                failures.append(error)
                continue
            self.answered_s = time.monotonic()
            with self._lock:
                self._running.append((address, weakref.ref(worker)))
            return worker
        kind = NoRoomError if any(isinstance(error, NoRoomError) for error in failures) else WorkerDiedError
        raise kind(f"no environment server has a worker: {'; '.join(map(str, failures))}")

    def _by_room(self) -> list[str]:
        with self._lock:
            self._running = [(a, ref) for a, ref in self._running if (w := ref()) is not None and not w.is_killed]
            used = Counter(address for address, _ in self._running)
        return sorted(self._capacities, key=lambda address: used[address] / self._capacities[address])


def _ask(address: str, token: bytes, purpose: bytes) -> tuple[socket.socket, bytes, dict[str, Any]]:
    """Connect, exchange proofs, and ask for something; return the connection, its key and the answer."""
    place = split_address(address)
    try:
        connection = socket.create_connection(place, timeout=CONNECT_S)
    except OSError as error:
        raise WorkerDiedError(f"{address} does not answer ({error}): is llm-envs serve-envs running there?") from error
    try:
        keep_alive(connection)
        key = respond(connection, token)
        frames = Frames(key, "server", is_host=True)
        connection.sendall(frames.pack(purpose))
        info: dict[str, Any] = json.loads(frames.receive(connection, _MAX_INFO_BYTES))
        version = info["version"]
    except PermissionError as error:
        connection.close()
        raise InvalidConfigError(f"{address} has another token: set {TOKEN_VARIABLE} to the server's.") from error
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise WorkerDiedError(f"{address} does not answer as an environment server does ({error})") from error
    except BaseException:
        connection.close()
        raise
    if version != __version__:
        connection.close()
        raise InvalidConfigError(f"{address} has llm-envs {version}, here it is {__version__}: install one on both.")
    return connection, key, info
