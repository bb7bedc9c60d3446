"""The endpoint for the hosts' `custom` auth: returns the user of a token, or 401 for an unknown one."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

type Json = dict[str, Any]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    users: Mapping[str, Json]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        user = self.server.users.get(request["api_key"])
        answer = json.dumps(user or {"message": "unknown"}).encode()
        self.send_response(200 if user else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Do not log."""


@contextmanager
def auth_server(users: Mapping[str, Json]) -> Iterator[str]:
    """Run the endpoint and yield its URL.

    Args:
        users: users by token; may change at any time: `{"principal": ..., "attributes": {...}, "tenant": ...}`.
    """
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.users = users
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/validate"
        finally:
            server.shutdown()
            thread.join()
