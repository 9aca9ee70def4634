"""A local server that speaks the few calls of the hub that an upload makes, and keeps what it was given in a folder.

It is no hub: it checks nothing but the token, and asks for every file in the commit itself (no large-file storage).
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_stand_in"


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        kind, owner, name, what = self._place()
        if what == "tree":
            folder = self.server.folder / kind / owner / name
            files = [path for path in folder.rglob("*") if path.is_file()]
            entries = [
                {"type": "file", "path": p.relative_to(folder).as_posix(), "size": p.stat().st_size, "oid": "0" * 40}
                for p in files
            ]
            self._answer(entries)
        else:
            self._answer({"error": "not found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.calls.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            asked = json.loads(body)
            kind = "datasets/" if asked.get("type") == "dataset" else ""
            self._answer({"url": f"{self.server.address}/{kind}{asked['organization']}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._answer({"error": "not found"}, 404)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        kind, owner, name, _ = self._place()
        folder = self.server.folder / kind / owner / name
        for line in lines:
            path = folder / line["value"].get("path", "")
            if line["key"] == "file":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(line["value"]["content"]))
            elif line["key"] == "deletedFile":
                path.unlink()
        self._answer({"commitUrl": f"{self.server.address}/{owner}/{name}/commit/{'1' * 40}", "commitOid": "1" * 40})

    def _place(self) -> list[str]:
        """Return [models or datasets, owner, name, what is asked of it]."""
        return [*self.path.partition("?")[0].split("/")[2:6], "", "", "", ""][:4]

    def _answer(self, data: Any, status: int = 200) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def hub_stand_in(folder: Path) -> Iterator[Any]:
    """Run the server; it has its `address`, the `created` repositories, the `calls`, and writes into the folder."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.folder, server.created, server.calls = folder, [], []
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def environment(server: Any) -> dict[str, str]:
    """Return the variables with which huggingface_hub asks this server and no other."""
    return {"HF_ENDPOINT": server.address, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
