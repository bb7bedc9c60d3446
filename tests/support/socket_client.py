"""Clients with their own sockets, which control how much they read and when they disconnect.

with SocketClient(stack, {"model": "local/m", "input": "Hi", "stream": True}, buffer=32_768) as client:
    client.read_until(b"event: response.created")
    client.disconnect()

disconnect_after(stack, UNFINISHED["json"]("", {}))
"""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Self

from tests.support.stack import LiveStack

type Json = dict[str, object]

SECONDS: Final = 60.0
"""Timeout for a busy machine, in seconds."""


class SocketClient:
    """A client with its own socket, so that the test controls when it disconnects."""

    def __init__(
        self,
        stack: LiveStack,
        body: Json | None,
        buffer: int | None = None,
        path: str = "/v1/responses",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the request (a GET without a body). `buffer` is the kernel's receive buffer for unread data."""
        method, payload = ("POST", json.dumps(body).encode()) if body is not None else ("GET", b"")
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(SECONDS)
        self._received = b""
        with self._closed_on_error():
            self._send(stack, method, path, headers or {}, payload)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._socket.close()
            raise

    def _send(self, stack: LiveStack, method: str, path: str, headers: Mapping[str, str], payload: bytes) -> None:
        self._socket.connect(("127.0.0.1", stack.port))
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._socket.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + payload)

    def __enter__(self) -> Self:
        """Return self, which is connected already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send these bytes after the request."""
        self._socket.sendall(data)

    def read_until(self, *words: bytes) -> bytes:
        """Read until one of `words` has arrived, and return it."""
        deadline = time.monotonic() + SECONDS
        while not (found := next((each for each in words if each in self._received), b"")):
            piece = self._socket.recv(65536)
            assert piece, f"the stack closed the connection after {self._received[-300:]!r}"
            assert time.monotonic() < deadline, f"{words!r} did not come, only {self._received!r:.2000}"
            self._received += piece
        return found

    def read_all(self) -> bytes:
        """Read to the end of the answer: the last chunk of a chunked body."""
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = self._socket.recv(1 << 20)
            assert piece, "the stack closed the connection"
            received += piece
        return bytes(received)

    def read_to_end(self) -> bytes:
        """Read until the stack closes the connection; return all that has arrived on it."""
        with suppress(ConnectionError):
            while piece := self._socket.recv(65_536):
                self._received += piece
        return self._received

    def disconnect(self) -> float:
        """Close the connection and return the time."""
        now = time.monotonic()
        self._socket.close()
        return now


def request(line: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request with this head, and the given beginning of its body."""
    lines = [f"{line} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def unfinished(path: str, media_type: str, begin: bytes) -> Callable[[str, Mapping[str, str]], bytes]:
    """Return a function that builds an incomplete POST, from a container id and headers."""

    def upload(container: str, headers: Mapping[str, str]) -> bytes:
        sent = {"content-type": media_type, "content-length": "1000", **headers}
        return request(f"POST {path.replace('{}', container)}", sent, begin)

    return upload


UNFINISHED: Final[Mapping[str, Callable[[str, Mapping[str, str]], bytes]]] = {
    "json": unfinished("/v1/responses", "application/json", b"{"),
    "form": unfinished("/v1/containers/{}/files", "multipart/form-data; boundary=b", b"--b\r\n"),
    "items": unfinished("/v1/conversations", "application/json", b"{"),
}
"""Incomplete requests, by the kind of their body."""

HEAD_OF_A_MESSAGE: Final = b"\x81\xfe\x10\x00"
"""The head of a WebSocket message of 4,096 bytes."""


def handshake(headers: Mapping[str, str]) -> bytes:
    """Return the request that opens a WebSocket."""
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    return request("GET /v1/responses", {**upgrade, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", **headers})


def disconnect_after(stack: LiveStack, begin: bytes, then: bytes = b"") -> None:
    """Send `begin`; after the first bytes of an answer send `then`, if given; then disconnect."""
    with socket.create_connection(("127.0.0.1", stack.port), SECONDS) as connection:
        connection.sendall(begin)
        if then:
            connection.recv(65_536)
            connection.sendall(then)
