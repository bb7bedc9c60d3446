"""Brings our own wire into the host.

The host types its `/v1/responses` and `/v1/conversations` routes with its own models, which refuse much of what
OpenAI's clients send. It builds the routes of an API with a factory that it finds in a table; we enter ours there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import APIRouter

from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.wire.response_routes import create_router

from .platform import fastapi_router_registry
from .provider_data import guard_provider_data
from .websocket_auth import HostGate
from .websocket_frames import bound_websocket_frames


def enter_router() -> None:
    """Makes the host build our routes for our implementation of responses, and its own for any other.

    Raises:
        RuntimeError: the host has no table of router factories.
    """
    factories = _factories()
    of_host = factories.get("responses")

    def build(impl: Any) -> APIRouter:
        if isinstance(impl, OpenAIResponsesImpl):
            guard_provider_data()
            bound_websocket_frames()
            with suppress(RuntimeError):
                # OGX builds routes in the loop that serves, too late for a router to have a lifespan of its own.
                asyncio.get_running_loop().call_soon(impl.start)
            return create_router(impl, HostGate(impl.access))
        if of_host is None:
            raise RuntimeError("The host has routes of its own for no other provider of the API 'responses'.")
        return of_host(impl)

    factories["responses"] = build


def leave_out_conversations() -> None:
    """Makes the host build no routes for its own conversations, which it has in any stack.

    The conversations that our responses continue are ours, and their routes come with those of the responses. A stack
    with another provider of responses keeps the host's.

    Raises:
        RuntimeError: the host has no table of router factories.
    """
    _factories()["conversations"] = lambda _: APIRouter()


def _factories() -> dict[str, Callable[[Any], APIRouter]]:
    factories: dict[str, Callable[[Any], APIRouter]] | None = getattr(
        fastapi_router_registry, "_ROUTER_FACTORIES", None
    )
    if factories is None:
        raise RuntimeError(
            "This version of the host has no table of router factories, so llama-stack-responses cannot serve its "
            "routes: use llama-stack 0.7.3 or ogx 1.5.0."
        )
    return factories
