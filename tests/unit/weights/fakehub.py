"""A hub on a local port: one repository, a commit for each revision, ranges, and connections that can be cut."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "a" * 40
NAME = "tiny/model"


class FakeHub:
    """Serves `files` (path -> bytes) as `tiny/model`. Used as a context manager; `url` is the endpoint.

    `cut` names a file whose next transfer breaks off after half of its bytes; `dead` one that is never given.
    `requests` lists (path, range header) of every file transfer.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.cut: str | None = None
        self.dead: str | None = None
        self.requests: list[tuple[str, str | None]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def folder_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        return None

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        api, resolve = f"/api/models/{NAME}", f"/{NAME}/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._json({"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": f} for f in self.hub.files]})
        elif path == f"{api}/tree/{COMMIT}":
            self._json([
                {"type": "file", "path": f, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                for f, b in self.hub.files.items()
            ])  # fmt: skip
        elif path.startswith(resolve) and path.removeprefix(resolve) in self.hub.files:
            self._file(path.removeprefix(resolve), body)
        elif path.startswith(f"{api}/"):
            self._missing("RevisionNotFound")
        else:
            self._missing("RepoNotFound")

    def _file(self, name: str, body: bool) -> None:
        data = self.hub.files[name]
        wanted = self.headers.get("Range")
        begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if not body:
            return
        self.hub.requests.append((name, wanted))
        if name in (self.hub.cut, self.hub.dead):
            if name == self.hub.cut:
                self.hub.cut = None
                self.wfile.write(data[begin : begin + (len(data) - begin) // 2])
                self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self.wfile.write(data[begin:])

    def _json(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
