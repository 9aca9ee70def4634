"""The frames of one connection between a collector and a worker, each with a proof of its sender and its place.

1. A frame is a header and data. The header has the data's length and digest, and a MAC of both, of the frame's number
   and of its direction. A frame that was changed, repeated, moved, left out or sent back is refused before anything
   in it is read. Nothing is encrypted.
2. A key holds for one connection. Between machines it is made of the token, which is never sent, and a challenge of
   each side; on one machine it is random and goes to the child by a pipe.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct

from llm_envs.processes.child import read_exactly

__all__ = ["HEADER", "KEY_BYTES", "MAX_FRAME_BYTES", "Frames", "challenge", "respond"]

HEADER = struct.Struct("!Q32s32s")
"""Length and SHA-256 of the data, and the MAC."""
MAX_FRAME_BYTES = 64 << 20
"""Longest frame from a worker: some hundred times the longest observation that a model could read."""
KEY_BYTES = 32
_HELLO = b"llm-envs environments 1\n"


class Frames:
    """Packs and unpacks one side's frames.

    Args:
        key: The connection's.
        purpose: With another one, the same key makes other MACs.
        is_host: Whether this is the collector's side.
    """

    def __init__(self, key: bytes, purpose: str, *, is_host: bool) -> None:
        to_worker, to_host = (_mac(key, f"{purpose}, to the {side}".encode()) for side in ("worker", "host"))
        self._out_key, self._in_key = (to_worker, to_host) if is_host else (to_host, to_worker)
        self._n_out = self._n_in = 0

    def pack(self, data: bytes) -> bytes:
        """Return the next frame."""
        self._n_out += 1
        digest = hashlib.sha256(data).digest()
        return HEADER.pack(len(data), digest, _sign(self._out_key, self._n_out, len(data), digest)) + data

    def take(self, buffer: bytearray, max_bytes: int | None = None) -> bytes | None:
        """Remove the next frame from the beginning of a buffer and return its data; None while it is incomplete.

        Raises:
            OSError: If it has more than `max_bytes`, or is not the next frame of the other side.
        """
        if len(buffer) < HEADER.size:
            return None
        size, digest, mac = HEADER.unpack_from(buffer)
        if not hmac.compare_digest(mac, _sign(self._in_key, self._n_in + 1, size, digest)):
            raise OSError("it sent a frame without the MAC of its key and place")
        if max_bytes is not None and size > max_bytes:
            raise OSError(f"it sent a frame of {size} bytes")
        if len(buffer) < HEADER.size + size:
            return None
        data = bytes(memoryview(buffer)[HEADER.size : HEADER.size + size])
        del buffer[: HEADER.size + size]
        if hashlib.sha256(data).digest() != digest:
            raise OSError("it sent a frame with other data than its header has")
        self._n_in += 1
        return data

    def receive(self, connection: socket.socket, max_bytes: int | None = None) -> bytes:
        """Wait for the next frame and return its data. Reads nothing behind it.

        Raises:
            OSError: As `take`, or if the connection ends.
        """
        buffer = bytearray(read_exactly(connection, HEADER.size))
        data = self.take(buffer, max_bytes)
        if data is None:
            buffer += read_exactly(connection, HEADER.unpack_from(buffer)[0])
            data = self.take(buffer, max_bytes)
        assert data is not None
        return data


def challenge(connection: socket.socket, token: bytes) -> bytes:
    """Prove to a collector that this server knows the token, and have it prove the same; return the connection's key.

    Raises:
        PermissionError: If it has another token.
        OSError: If it is not a collector, or the connection ends.
    """
    ours = secrets.token_bytes(KEY_BYTES)
    connection.sendall(_HELLO + ours)
    answer = read_exactly(connection, 2 * KEY_BYTES)
    key = _mac(token, _HELLO + ours + answer[:KEY_BYTES])
    is_known = hmac.compare_digest(answer[KEY_BYTES:], _mac(key, b"collector"))
    connection.sendall(_mac(key, b"server") if is_known else bytes(KEY_BYTES))
    if not is_known:
        raise PermissionError("another token")
    return key


def respond(connection: socket.socket, token: bytes) -> bytes:
    """Do what `challenge` does, as the collector."""
    hello = read_exactly(connection, len(_HELLO) + KEY_BYTES)
    if not hello.startswith(_HELLO):
        raise OSError(f"it began with {hello[: len(_HELLO)]!r}")
    ours = secrets.token_bytes(KEY_BYTES)
    key = _mac(token, hello + ours)
    connection.sendall(ours + _mac(key, b"collector"))
    if not hmac.compare_digest(read_exactly(connection, KEY_BYTES), _mac(key, b"server")):
        raise PermissionError("another token")
    return key


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _sign(key: bytes, number: int, size: int, digest: bytes) -> bytes:
    return _mac(key, struct.pack("!QQ", number, size) + digest)
