"""The order of an application's routes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from httpx import ASGITransport, AsyncClient

from llama_stack_responses.wire.route_order import RouteOrder


def application(*, enabled: bool) -> tuple[FastAPI, list[str]]:
    """Return an application with a host's routes before ours, and the paths that are matched."""
    matched: list[str] = []
    order = RouteOrder(enabled=enabled)

    class Router(APIRouter):
        """A router that notes when it is matched."""

        def matches(self, scope: Any) -> Any:
            matched.append(scope["path"])
            return super().matches(scope)

    host, ours, app = Router(), APIRouter(), FastAPI()

    @host.get("/v1/models")
    async def models() -> str:
        return "models"

    @ours.post("/v1/responses")
    async def create(request: Request) -> str:
        order.begin_with(request)
        return "created"

    app.include_router(host)
    app.include_router(ours)
    return app, matched


@pytest.mark.parametrize("enabled", [True, False])
async def test_route_is_matched_before_those_of_host_after_first_request(enabled: bool) -> None:
    app, matched = application(enabled=enabled)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://x") as client:
        assert (await client.post("/v1/responses")).json() == "created"
        assert matched
        matched.clear()
        assert (await client.post("/v1/responses")).json() == "created"
        assert bool(matched) is not enabled
        assert (await client.get("/v1/models")).json() == "models"
        assert (await client.put("/v1/responses")).status_code == 405


async def test_request_of_telemetry_is_matched_by_the_router_that_names_its_route() -> None:
    app, matched = application(enabled=True)

    async def traced(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "fastapi.telemetry": object()}, receive, send)

    async with AsyncClient(transport=ASGITransport(traced), base_url="http://x") as client:
        for _ in range(2):
            matched.clear()
            assert (await client.post("/v1/responses")).json() == "created"
            assert matched


async def test_request_with_another_prefix_is_matched_by_its_router() -> None:
    app, matched = application(enabled=True)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://x") as client:
        assert (await client.post("/v1/responses")).json() == "created"
    matched.clear()
    async with AsyncClient(transport=ASGITransport(app, root_path="/prefix"), base_url="http://x") as client:
        assert (await client.post("/prefix/v1/responses")).json() == "created"
        assert (await client.post("/v1/responses")).json() == "created"
    assert matched
