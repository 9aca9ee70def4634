"""Files of trackers, read back with each one's own library, and a proxy that hears whatever goes to the network."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def wandb_records(folder: Path) -> list[Any]:
    """Read the one offline run below a folder: LevelDB's log format, a record of W&B's protocol in each."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    data, place, part, records = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # in one piece, or the last of several
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(part)
            part = b""
    return records


def tensorboard_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


@contextmanager
def watched_proxy() -> Iterator[tuple[str, list[bytes]]]:
    """Listen where libraries are told that their proxy is, and keep the first words of each connection."""
    heard: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            heard.append(self.request.recv(200))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", heard
        finally:
            server.shutdown()
