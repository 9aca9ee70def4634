"""`llm-envs serve-envs`: worker processes for collectors on other machines.

Each connection gets a process, which speaks with the collector directly (`child`). When the connection ends, however
that happens, the process is killed with everything that it has started. When the process ends, so does the connection.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import threading
import time
from contextlib import suppress

from llm_envs import __version__
from llm_envs.errors import InvalidConfigError, WorkerDiedError
from llm_envs.processes.peer import Peer
from llm_envs.rollout.workers.frames import Frames, challenge
from llm_envs.rollout.workers.process import has_ended, start_worker
from llm_envs.rollout.workers.remote import CONNECT_S, keep_alive

__all__ = ["EnvServer"]

_LOG = logging.getLogger(__name__)

_LOOK_S = 0.1
"""How often ended processes are looked for."""
_MAX_GREETINGS = 64
"""Connections that may be in their handshake at once. A further one replaces the oldest: an honest handshake takes
milliseconds, so those that say nothing cannot keep it out."""
_MAX_PURPOSE_BYTES = 16


class EnvServer:
    """Listens for collectors. Usable as a context manager, which serves in a thread.

    Args:
        n_workers: Maximum number of processes.
        token: Must be known to collectors. Whoever knows it can run any code here.
        host: Address to listen on. The default can be reached from this machine only.
        port: 0 chooses a free one.

    Raises:
        InvalidConfigError: If a setting is wrong, or the address cannot be listened on.
    """

    def __init__(self, n_workers: int, token: bytes, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if n_workers < 1 or len(token) < 16:
            raise InvalidConfigError(
                f"an environment server needs at least 1 worker and a token of at least 16 bytes; it has {n_workers} "
                f"and {len(token)}."
            )
        self.n_workers, self._token = n_workers, token
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except (OSError, OverflowError) as error:
            raise InvalidConfigError(f"{host}:{port} cannot be listened on: {error}.") from error
        self._lock = threading.Lock()
        self._served: dict[int, tuple[Peer, str]] = {}  # process id -> the worker, and who has it
        self._n_begun = 0  # processes, those that are being started too
        self._greetings: dict[socket.socket, float] = {}  # in the order of their beginning -> when to give up
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address, as "host:port"."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def n_busy(self) -> int:
        """Number of processes, those included that are starting or ending."""
        with self._lock:
            return self._n_begun

    def serve(self) -> None:
        """Serve until `close` is called, perhaps in another thread."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        watched: dict[int, int] = {}  # descriptor -> process id
        try:
            while not self._is_closed.is_set():
                with self._lock:
                    new = {worker.connection.fileno(): pid for pid, (worker, _) in self._served.items()}
                for descriptor in new.keys() - watched.keys():
                    poller.register(descriptor, select.POLLRDHUP)
                watched = new
                events = poller.poll(_LOOK_S * 1e3)
                self._drop_greetings()
                for descriptor, _ in events:
                    if descriptor == self._listener.fileno():
                        self._accept()
                    elif descriptor in watched:
                        self._end(watched.pop(descriptor), poller)
                with self._lock:
                    ended = [pid for pid, (worker, _) in self._served.items() if has_ended(worker.process)]
                for pid in ended:
                    self._end(pid, poller)
                watched = {descriptor: pid for descriptor, pid in watched.items() if pid not in ended}
        finally:
            self._listener.close()
            with self._lock:
                left = list(self._served)
            for pid in left:
                self._end(pid, poller)

    def close(self) -> None:
        """Stop serving and kill all processes."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> EnvServer:
        """Serve in a thread; leaving the block closes the server."""
        self._thread = threading.Thread(target=self.serve, name="llm-envs-env-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        try:
            connection, peer = self._listener.accept()
        except OSError:
            return
        name = f"{peer[0]}:{peer[1]}"
        with self._lock:
            self._greetings[connection] = time.monotonic() + CONNECT_S
        self._drop_greetings()
        try:
            threading.Thread(target=self._greet, args=(connection, name), name=f"greet-{name}", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._leave(connection)
            connection.close()

    def _drop_greetings(self) -> None:
        """End handshakes that are over their time, and the oldest if there are too many."""
        with self._lock:
            late = [connection for connection, until in self._greetings.items() if until <= time.monotonic()]
            late += list(self._greetings)[: max(len(self._greetings) - _MAX_GREETINGS, 0)]
            for connection in late:
                self._greetings.pop(connection, None)
                with suppress(OSError):  # not closed: its thread has it
                    connection.shutdown(socket.SHUT_RDWR)

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._greetings.pop(connection, None)

    def _greet(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.settimeout(CONNECT_S)
            keep_alive(connection)
            key = challenge(connection, self._token)
            frames = Frames(key, "server", is_host=False)
            is_worker = frames.receive(connection, _MAX_PURPOSE_BYTES) == b"worker"
            self._leave(connection)
            self._answer(connection, frames, key, peer, is_worker=is_worker)
        except PermissionError:
            _LOG.warning("%s has another token and was refused.", peer)
        except (OSError, WorkerDiedError, ValueError) as error:
            _LOG.warning("%s: %s", peer, error)
        finally:
            self._leave(connection)
            connection.close()

    def _answer(self, connection: socket.socket, frames: Frames, key: bytes, peer: str, *, is_worker: bool) -> None:
        with self._lock:
            has_room = self._n_begun < self.n_workers and not self._is_closed.is_set()
            self._n_begun += is_worker and has_room
        info = {"n_workers": self.n_workers, "has_room": has_room, "version": __version__}
        try:
            connection.sendall(frames.pack(json.dumps(info).encode()))
            if not (is_worker and has_room):
                return
            connection.settimeout(None)
            worker = start_worker((connection.dup(), connection), key)
        except BaseException:
            with self._lock:
                self._n_begun -= is_worker and has_room
            raise
        with self._lock:
            self._served[worker.pid] = worker, peer

    def _end(self, pid: int, poller: select.poll) -> None:
        with self._lock:
            worker, peer = self._served.pop(pid, (None, ""))
        if worker is None:
            return
        with suppress(KeyError, ValueError):
            poller.unregister(worker.connection)
        worker.close()
        _LOG.info("the worker of %s has ended (%s).", peer, worker.process.returncode)
        with self._lock:
            self._n_begun -= 1
