"""A feature with a route, a background task, and a change of requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from llama_stack_responses import OpenAIResponsesImpl
from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.feature import CreateRequest, Feature, LargeWork, RouteAdmission, Stack, routes_within

from .settings import ACME, Acme


def open_feature(stack: Stack) -> Feature:
    """Return what the feature brings to a server."""
    settings = ACME.of(stack.config)
    ticks = Ticks()
    return Feature(
        routes=[lambda impl, limits: _router(settings, ticks, impl, limits)],
        connect=ticks.connect,
        start=ticks.start,
        close=ticks.close,
        fill=refuse_marked,
    )


class Ticks:
    """A background task that counts."""

    def __init__(self) -> None:
        self.count = 0
        self.impl: OpenAIResponsesImpl | None = None
        self._task: asyncio.Task[None] | None = None

    def connect(self, impl: OpenAIResponsesImpl) -> None:
        """Take the implementation of the API."""
        self.impl = impl

    def start(self) -> None:
        """Start to count, if the implementation is known by then."""
        assert self.impl
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0.01)


async def refuse_marked(request: CreateRequest, _: LargeWork) -> CreateRequest:
    """Return the request as it is.

    Raises:
        ApiError: 400, its metadata say that it is refused.
    """
    if request.metadata.get("acme") == "refuse":
        raise bad_request("acme refuses this request: remove 'metadata.acme'.", "metadata.acme")
    return request


def _router(settings: Acme, ticks: Ticks, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
    router = APIRouter(prefix="/v1/acme", route_class=routes_within(limits))

    async def greet() -> Response:
        return JSONResponse({"greeting": settings.greeting, "ticks": ticks.count > 0, "connected": ticks.impl is impl})

    router.add_api_route("/greeting", greet, methods=["GET"])
    return router
