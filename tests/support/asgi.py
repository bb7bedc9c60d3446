"""Requests to an ASGI application without a server: the test controls which parts of the body arrive, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Scope

from llama_stack_responses.admission import Admission
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.config.limits import Limits
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.logs import Attached
from llama_stack_responses.wire.http_responses import JsonResponse
from llama_stack_responses.wire.request_handling import Handler, routes_within
from llama_stack_responses.wire.route_admission import RouteAdmission


@dataclass
class Body:
    """The chunks of a request body.

    Attributes:
        pieces: the chunks.
        then: what follows: the end of the body, a disconnect, or nothing.
        taken: number of chunks that the application has read.
    """

    pieces: Iterable[bytes] = ()
    then: str = "end"
    taken: int = 0
    _left: Iterator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Start the iteration."""
        self._left = iter(self.pieces)

    async def receive(self) -> Message:
        """Return the next message."""
        for piece in self._left:
            self.taken += 1
            return {"type": "http.request", "body": piece, "more_body": True}
        if self.then == "silence":
            await asyncio.Event().wait()
        if self.then == "leave":
            return {"type": "http.disconnect"}
        self.then = "silence"
        return {"type": "http.request", "body": b"", "more_body": False}


@dataclass
class Answer:
    """The response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    async def send(self, message: Message) -> None:
        """Receive a message of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")

    @property
    def error(self) -> Any:
        """OpenAI's error object in the body."""
        return orjson.loads(self.body)["error"]


async def ask(
    app: ASGIApp, body: Body, headers: Mapping[str, str | None] | None = None, method: str = "POST"
) -> Answer:
    """Send a request for `/` and return the application's answer."""
    answer = Answer()
    await app(scope_of(headers, method), body.receive, answer.send)
    return answer


def scope_of(headers: Mapping[str, str | None] | None = None, method: str = "POST") -> Scope:
    """Return the scope of a request for `/`, whose body is declared as JSON; a header that is None is left out."""
    sent = {"content-type": "application/json", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in sent.items() if value is not None]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": raw,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }


class _LimitsOfUsers(RouteAdmission):
    """Limits of requests that are those of one user after the other."""

    next_user: Callable[[], None]

    def working_for(self, user: Owner | None = None) -> Attached:
        """Let the request that begins be that of the next user."""
        self.next_user()
        return super().working_for(user)


class App:
    """An application with one route at `/`.

    Attributes:
        broken_off: scopes of the connections that it has closed.
    """

    def __init__(self, limits: Mapping[str, Any] | None = None, owners: Iterable[str] = ("ada",)) -> None:
        """Create the application. `owners` are the users of consecutive requests; the last one is repeated."""
        given = Limits.model_validate(limits or {})
        self._owners = list(owners)
        self._owner: ContextVar[str] = ContextVar("owner")
        self.broken_off: list[Scope] = []
        self.limits = _LimitsOfUsers(
            given,
            self._current_user,
            LargeWork(),
            self._abort_connection,
            Admission(given.stream_quota),
        )
        self.limits.next_user = self._next_user
        self.bodies = self.limits.bodies
        self._app = FastAPI()

    def serve(self, handler: Handler) -> ASGIApp:
        """Return the application with this handler."""
        self._app.router.route_class = routes_within(self.limits)
        self._app.router.add_api_route("/", handler, methods=["GET", "POST"])
        return self._app

    def _next_user(self) -> None:
        """Let the current request be that of the next user."""
        self._owner.set(self._owners.pop(0) if len(self._owners) > 1 else self._owners[0])

    def echo(self) -> ASGIApp:
        """Return an application that answers with the JSON object that it receives."""

        async def echo(request: Request) -> Response:
            return JsonResponse(await self.bodies.json(request))

        return self.serve(echo)

    def _current_user(self) -> Owner:
        return Owner(self._owner.get(self._owners[0]))

    def _abort_connection(self, scope: Any) -> None:
        self.broken_off.append(scope)
