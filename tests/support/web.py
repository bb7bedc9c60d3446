"""A stand-in for the web: a server on this machine with a scripted answer for each path.

    with Web() as web:
        web.say("/page", "<p>Otters</p>")
        web.answers["/slow"] = Answer(body=[b"a", event, b"b"])     # waits for the event
        web.answer_all = lambda request: ...                          # for every path
    web.url("/page")
        web.seen                                                    # the requests, oldest first

With `certificate`, it speaks TLS; with `intercepts`, it is a proxy that answers for every server.
The answer for a path may also be a function of the request.
"""

import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

type Body = bytes | Iterable[bytes | Event]


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. A body in pieces is sent piece by piece, waiting at each event."""

    body: Body = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Web:
    """The server, for a `with` block."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: ssl.SSLContext | None = None,
        intercepts: ssl.SSLContext | None = None,
    ) -> None:
        """Create a server. `certificate` and `intercepts` are TLS contexts of servers."""
        self.intercepts = intercepts
        self.answers: dict[str, Answer | Callable[[ReceivedRequest], Answer]] = {}
        self.answer_all: Callable[[ReceivedRequest], Answer] | None = None
        self.seen: list[ReceivedRequest] = []
        self._server = _Server((host, port), _Handler)
        self._server.web = self
        self._scheme = "https" if certificate else "http"
        if certificate:
            self._server.socket = certificate.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_address[1])

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """Return the URL of a path, with any host name that resolves to this server."""
        return f"{self._scheme}://{host}:{self.port}{path}"

    def say(self, path: str, text: str, media_type: str = "text/html; charset=utf-8") -> None:
        """Answer a path with a text."""
        self.answers[path] = Answer(text.encode(), headers={"content-type": media_type})

    def say_json(self, path: str, value: Any) -> None:
        """Answer a path with JSON."""
        self.say(path, json.dumps(value), "application/json")

    def reset(self) -> None:
        """Delete the recorded requests and all answers."""
        self.answer_all = None
        self.answers.clear()
        self.seen.clear()

    def answer(self, request: ReceivedRequest) -> Answer:
        """Return the answer to a request."""
        self.seen.append(request)
        found = self.answer_all or self.answers.get(request.path, Answer(b"not here", 404))
        return found(request) if callable(found) else found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the library's 5, a refused client retries only after a second
    web: Web

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, such as disconnects."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    _behind: ssl.SSLSocket | None = None

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.web.answer(ReceivedRequest(self.command, parts.path, query, headers, body))
        with suppress(ConnectionError, ssl.SSLError):
            self._send(answer)

    do_POST = do_DELETE = do_GET  # noqa: N815 (the library's names)

    def do_CONNECT(self) -> None:
        assert self.server.web.intercepts
        self.send_response(200)
        self.end_headers()
        self.connection = self._behind = self.server.web.intercepts.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        if self._behind:
            self._behind.close()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        whole = isinstance(answer.body, bytes)
        if isinstance(answer.body, bytes):
            self.send_header("content-length", str(len(answer.body)))
        self.send_header("connection", "keep-alive" if whole else "close")
        self.close_connection = not whole
        self.end_headers()
        for piece in [answer.body] if isinstance(answer.body, bytes) else answer.body:
            if isinstance(piece, Event):
                piece.wait(30)
            else:
                self.wfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Do not log."""
