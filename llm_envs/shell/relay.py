"""The one way out of a sandbox without a network: connections to a port of its loopback are passed on to one address.

The listening socket was made in the sandbox's network and handed over. The connections that it accepts here can only
go where the relay sends them, so nothing inside chooses an address.
"""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["Relay"]

_MOST = 64
"""Connections at a time; further ones wait."""
_CONNECT_S = 30.0


class Relay:
    """Passes connections on, in threads.

    Args:
        address: Host and port to which all connections lead.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._free = threading.BoundedSemaphore(_MOST)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_closed = False

    def serve(self, descriptor: int) -> None:
        """Begin to accept connections on a listening socket, which the relay closes at its end."""
        self._listener = socket.socket(fileno=descriptor)
        self._open.add(self._listener)
        threading.Thread(target=self._accept, name="llm-envs-relay", daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed = True
            connections, self._open = self._open, set()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(inside,), name="llm-envs-relay", daemon=True).start()

    def _pass_on(self, inside: socket.socket) -> None:
        try:
            with inside, socket.create_connection(self._address, _CONNECT_S) as outside:
                outside.settimeout(None)
                with self._lock:
                    if self._is_closed:
                        return
                    self._open |= {inside, outside}
                back = threading.Thread(target=_copy, args=(outside, inside), name="llm-envs-relay", daemon=True)
                back.start()
                _copy(inside, outside)
                back.join()
                with self._lock:
                    self._open -= {inside, outside}
        except OSError:
            pass  # the address refuses, or the relay has been closed: the sandbox sees its connection end
        finally:
            self._free.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the end of one direction."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
