"""A server without a host's web server, whose requests come from any user, for the routes below `/v1/admin`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
import orjson
from fastapi import FastAPI
from llama_stack.core.datatypes import User
from llama_stack.core.request_headers import RequestProviderDataContext

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.discovery import modules_of_features
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Stack
from llama_stack_responses.host.identity import HostAccess
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.audit_log import AuditLog
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Records
from llama_stack_responses.wire.operators import Operators
from llama_stack_responses.wire.response_routes import create_router
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

ADA: Final = Owner("ada", {"teams": ["search"]})
BOB: Final = Owner("bob", {"teams": ["sales"]})
OPERATOR: Final = Owner("olga", {"roles": ["operator"], "keys": ["key_of_olga"]})
LEAD: Final = Owner("lea", {"roles": ["lead"], "teams": ["search"]})
ROLES: Final = {"operator": {"roles": ["operator"]}, "team_lead": {"roles": ["lead"]}}
FEATURES: Final = ("admin", "keys", "page", "scores")


class _NoSockets:
    async def admit(self, scope: Any, method: str) -> Any:
        raise NotImplementedError


class Administered:
    """A server, and what its users get.

    Attributes:
        impl: the server.
        records: its store.
        log: its audit log.
    """

    def __init__(self, impl: OpenAIResponsesImpl, records: Records, client: httpx.AsyncClient) -> None:
        self.impl = impl
        self.records = records
        self.log = AuditLog(records, 1_000)
        self._client = client
        self.headers = httpx.Headers()  # of the last answer

    async def ask(
        self, user: Owner | None, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json]:
        """Send a request of a user, below `/v1`; None is a request without authentication."""
        sent = dict(headers or {}) | ({"x-test-user": orjson.dumps(user.encode()).decode()} if user else {})
        answer = await self._client.request(method, f"/v1{path}", json=body, headers=sent)
        self.headers = answer.headers
        value: Json = answer.json()
        return answer.status_code, value

    async def respond(self, user: Owner, **fields: Any) -> Json:
        """Create a response of a user."""
        status, response = await self.ask(user, "POST", "/responses", {"model": "m", "input": "Hi", **fields})
        assert status == 200, response
        return response

    async def acts(self) -> list[tuple[str, str, str | None]]:
        """Return the acts in the audit log, newest first: type, outcome, and the id of the object."""
        return [
            (each["type"], each["outcome"], each["resource"]["id"]) async for each in self.log.entries(lambda _: True)
        ]


def _as_user(app: FastAPI) -> Any:
    async def called(scope: Any, receive: Any, send: Any) -> None:
        sent = dict(scope.get("headers", ())).get(b"x-test-user")
        owner = Owner(*orjson.loads(sent)) if sent else None
        user = User(owner.principal, {name: list(each) for name, each in owner.attributes.items()}) if owner else None
        with RequestProviderDataContext({}, user):
            await app(scope, receive, send)

    return called


@asynccontextmanager
async def administered(records: Records | None = None, **settings: Any) -> AsyncIterator[Administered]:
    """Run a server with these settings, by default with operators, leads of teams and keys."""
    records = records or MemoryRecords()
    config = ResponsesConfig(**({"roles": ROLES, "keys": {}} | settings))
    access = HostAccess([])
    inference = FakeInference(*([text(f"Answer {number}."), finish()] for number in range(50)))
    impl = server(records, inference, access, config=config)  # type: ignore[arg-type]
    operators = Operators(config.roles, access.current_user, AuditLog(records, config.roles.audit_seconds))
    stack = cast("Stack", SimpleNamespace(config=config, records=records, operators=operators))
    found = modules_of_features("feature")
    app = FastAPI()
    app.include_router(
        create_router(impl, _NoSockets(), "x-public", [found[name].open_feature(stack) for name in FEATURES])
    )
    transport = httpx.ASGITransport(app=_as_user(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield Administered(impl, records, client)
    await impl.shutdown()
