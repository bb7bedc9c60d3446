"""The endpoint for the hosts' `custom` auth: returns the user of a token, or 401 for an unknown one.

A user `{"status": 503}` is that status instead. Each answer sets a cookie with the token.
"""

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
    asked: list[Json]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        user = self.server.users.get(request["api_key"])
        asked = {"token": request["api_key"], "client": self.client_address, "cookie": self.headers["cookie"]}
        self.server.asked.append(asked)
        answer = json.dumps(user or {"message": "unknown"}).encode()
        self.send_response(user.get("status", 200) if user else 401)
        self.send_header("content-type", "application/json")
        self.send_header("set-cookie", f"session={request['api_key']}")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Do not log."""


@contextmanager
def auth_server(users: Mapping[str, Json], asked: list[Json] | None = None) -> Iterator[str]:
    """Run the endpoint and yield its URL.

    Args:
        users: users by token; may change at any time: `{"principal": ..., "attributes": {...}, "tenant": ...}`.
        asked: receives each question: its `token`, the address of its `client`, and its `cookie`.
    """
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.users, server.asked = users, [] if asked is None else asked
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/validate"
        finally:
            server.shutdown()
            thread.join()
