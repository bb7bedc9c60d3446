"""A user who attacks a live stack, and a table of attacks.

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
"""Where the hostile model server is, on the attacker's web."""
DONE: Final = reply(text("Done."))


@dataclass(frozen=True, slots=True)
class Attacker:
    """The user, and the servers that take part.

    Attributes:
        stack: what is attacked.
        token: the user's.
        wire: plain HTTP to the stack, as the user.
        upstream: the scripted model server; the model `done` says one word.
        web: pages, MCP servers and a hostile model server.
        host: which host it is.
        others_turn: waits until the other user has had an answer to a whole round of requests.
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
        """Those of a request of the user."""
        return {"authorization": f"Bearer {self.token}"}

    def ask(self, *content: Json, model: str = "local/done", **body: Any) -> httpx.Response:
        """Ask for a response to a message of these parts."""
        parts = [*content, {"type": "input_text", "text": "What is it?"}]
        body = {"model": model, "input": [{"role": "user", "content": parts}], **body}
        return self.wire.post(json.dumps(body))  # ASCII, so that it may name what no URL can hold

    def call(self, name: str, arguments: Json, **body: Any) -> Json:
        """The response in which the model makes this call, and then says that it is done."""
        self.upstream.script("calls", [calling(name, arguments), DONE])
        return ended(self.ask(model="local/calls", **body))

    def container(self) -> str:
        """The id of a new container."""
        answer = self.wire.http.post("/containers", json={"name": "c"})
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["id"]
        return found

    def connect(self) -> socket.socket:
        """A connection to the stack; use it in a `with` block."""
        return socket.create_connection(("127.0.0.1", self.stack.port), 60)

    @contextmanager
    def raw(self, line: str, *headers: str | bytes) -> Iterator[socket.socket]:
        """A connection on which this head was sent."""
        lines = [f"{line} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.token}", *headers, "", ""]
        encoded = (each if isinstance(each, bytes) else each.encode("latin-1") for each in lines)
        with self.connect() as connection:
            connection.sendall(b"\r\n".join(encoded))
            yield connection


def calling(name: str, arguments: Json) -> Reply:
    """A reply in which the model makes this call."""
    return reply(tool_call(0, "c1", name, json.dumps(arguments)))


def ended(answer: httpx.Response) -> Json:
    """The response, which has ended."""
    assert answer.status_code == 200, answer.text
    response = checked(answer)
    assert response["status"] in ("completed", "incomplete")
    return response


def refused(answer: httpx.Response, *statuses: int) -> Json:
    """The error, which has one of these statuses, 400 by default."""
    assert answer.status_code in (statuses or (400,)), f"{answer.status_code}: {answer.text[:1000]}"
    return error_of(answer, answer.status_code)


def judged(answer: httpx.Response) -> None:
    """It is taken, or refused as what the client did wrong."""
    if answer.status_code == 200:
        checked(answer)
    else:
        refused(answer, 400, 404, 413, 415, 422, 431)


def client_error(answer: httpx.Response) -> None:
    """A 200, or a 4xx in OpenAI's form."""
    if answer.status_code != 200:
        refused(answer, 400, 404, 405, 413, 415, 422, 429, 431)


class Attacks(dict[str, Callable[[Attacker], None]]):
    """Attacks by their names."""

    def add(self, **cases: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Adds a function of the attacker, which is called once for each case, with its value as `case`."""

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
