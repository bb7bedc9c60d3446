"""Replaces the host's routes by those of this package.

The host types its `/v1/responses` and `/v1/conversations` routes with its own models, which refuse much of the input
that OpenAI's clients send. It builds the routes of an API with a factory from a table; this module replaces the
entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from fastapi import APIRouter

from ..wire.response_routes import create_router
from .patches import apply_patches
from .platform import PUBLIC_ROUTE_KEY, fastapi_router_registry
from .responses_provider import ResponsesProvider
from .websocket_auth import HostAuthorizer


def enter_router() -> None:
    """Make the host build this package's routes for its implementation of responses, and its own routes for any other.

    Raises:
        RuntimeError: the host has no table of router factories.
    """
    factories = _factories()
    of_host = factories.get("responses")

    def build(impl: Any) -> APIRouter:
        if isinstance(impl, ResponsesProvider):
            with suppress(RuntimeError):
                # OGX builds routes in the serving event loop, too late for the lifespan of a router to run.
                asyncio.get_running_loop().call_soon(impl.start)
            return _router_of(impl)
        if of_host is None:
            raise RuntimeError("The host has no routes for another provider of the API 'responses'.")
        return of_host(impl)

    factories["responses"] = build


def _router_of(provider: ResponsesProvider) -> APIRouter:
    """Return the routes of a provider, made once: the host asks several times, also at its first request."""
    if provider.router is None:
        apply_patches(provider.config, provider.authenticate, provider.note_refused)
        authorizer = HostAuthorizer(provider.access)
        provider.router = create_router(provider, authorizer, PUBLIC_ROUTE_KEY, provider.features)
    return provider.router


def leave_out(api: str) -> None:
    """Make the host build no routes for one of its APIs, which this package serves with its own routes.

    A stack with another responses provider keeps the host's.

    Args:
        api: the name of the API, such as `conversations`.

    Raises:
        RuntimeError: the host has no table of router factories.
    """
    _factories()[api] = lambda _: APIRouter()


def change_routes(api: str, change: Callable[[APIRouter], None]) -> None:
    """Make the host change the routes that it builds for one of its APIs, in place of an earlier change.

    Args:
        api: the name of the API.
        change: changes them.

    Raises:
        RuntimeError: the host has no table of router factories.
    """
    factories = _factories()
    of_host = getattr(factories[api], "__wrapped__", factories[api])

    @wraps(of_host)
    def build(impl: Any) -> APIRouter:
        router = of_host(impl)
        change(router)
        return router

    factories[api] = build


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
