"""A user who attacks a live stack, and a registry of attacks.

ATTACKS = Attacks()

@ATTACKS.add(short=b"x", long=b"x" * 1_000_000)
def odd_body(at: Attacker, case: bytes) -> None:
    refused(at.wire.post(case))
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tests.support.stack import Host, LiveStack
from tests.support.upstream import Reply, Upstream, reply, text, tool_call
from tests.support.web import Web
from tests.support.wire import Json, Wire, checked, error_of

MODELS: Final = "/model/v1"
"""The path of the hostile model server on the attacker's web."""
DONE: Final = reply(text("Done."))


@dataclass(frozen=True, slots=True)
class Attacker:
    """The user, and the servers involved.

    Attributes:
        stack: the attacked stack.
        token: the user's token.
        wire: HTTP client of the stack, as the user.
        upstream: the scripted model server; its model `done` answers with one word.
        web: pages, MCP servers and a hostile model server.
        host: the stack's host.
        others_turn: waits for a whole round of the other user's requests.
    """

    stack: LiveStack
    token: str
    wire: Wire
    upstream: Upstream
    web: Web
    host: Host
    others_turn: Callable[[], None]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the user's requests."""
        return {"authorization": f"Bearer {self.token}"}

    def ask(self, *content: Json, model: str = "local/done", **body: Any) -> httpx.Response:
        """Request a response to a message of these parts."""
        parts = [*content, {"type": "input_text", "text": "What is it?"}]
        body = {"model": model, "input": [{"role": "user", "content": parts}], **body}
        return self.wire.post(json.dumps(body))  # ASCII, so that characters invalid in a URL are possible

    def call(self, name: str, arguments: Json, **body: Any) -> Json:
        """Return the response in which the model makes this call and then completes."""
        self.upstream.script("calls", [calling(name, arguments), DONE])
        return ended(self.ask(model="local/calls", **body))

    def container(self) -> str:
        """Create a container and return its id."""
        answer = self.wire.http.post("/containers", json={"name": "c"})
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["id"]
        return found

    def connect(self, buffer: int | None = None) -> socket.socket:
        """Open a connection to the stack, for a `with` block. `buffer` is the size of the kernel's buffers in bytes."""
        connection = socket.socket()
        if buffer is not None:
            # Before it is connected: a window that shrinks later makes the kernel drop what the other side sends.
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                connection.setsockopt(socket.SOL_SOCKET, option, buffer)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", self.stack.port))
        return connection

    @contextmanager
    def raw(self, line: str, *headers: str | bytes) -> Iterator[socket.socket]:
        """Open a connection and send this head."""
        lines = [f"{line} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.token}", *headers, "", ""]
        encoded = (each if isinstance(each, bytes) else each.encode("latin-1") for each in lines)
        with self.connect() as connection:
            connection.sendall(b"\r\n".join(encoded))
            yield connection


def calling(name: str, arguments: Json) -> Reply:
    """Return a reply with this call."""
    return reply(tool_call(0, "c1", name, json.dumps(arguments)))


def ended(answer: httpx.Response) -> Json:
    """Return the response, which must have ended."""
    assert answer.status_code == 200, answer.text
    response = checked(answer)
    assert response["status"] in ("completed", "incomplete")
    return response


def refused(answer: httpx.Response, *statuses: int) -> Json:
    """Return the error, which must have one of these statuses (400 by default)."""
    assert answer.status_code in (statuses or (400,)), f"{answer.status_code}: {answer.text[:1000]}"
    return error_of(answer, answer.status_code)


def judged(answer: httpx.Response) -> None:
    """Require success, or a client error."""
    if answer.status_code == 200:
        checked(answer)
    else:
        refused(answer, 400, 404, 413, 415, 422, 431)


def client_error(answer: httpx.Response) -> None:
    """Require status 200, or a 4xx in OpenAI's form."""
    if answer.status_code != 200:
        refused(answer, 400, 404, 405, 413, 415, 422, 429, 431)


class Attacks(dict[str, Callable[[Attacker], None]]):
    """Attacks by name."""

    def add(self, **cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a function of the attacker, called once for each case, with its value as `case`."""

        def added(function: Callable[..., None]) -> Callable[..., None]:
            def each(at: Attacker) -> None:
                for name, value in cases.items():
                    try:
                        function(at, case=value)
                    except BaseException as failure:
                        failure.add_note(f"the case is '{name}'")
                        raise

            self[function.__name__.replace("_", " ")] = each if cases else function
            return function

        return added
