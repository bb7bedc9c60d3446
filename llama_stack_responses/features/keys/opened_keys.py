"""What authenticates users by the keys of a stack, and the routes for those who manage them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter

from ...feature import Feature, RouteAdmission, Routes, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.access_keys import AccessKeys
from ...wire.operators import Operators
from .authentication import KeyAuthentication
from .key_routes import keys_router
from .settings import Keys


def open_keys(stack: Stack, settings: Keys) -> Feature:
    """Return what authenticates users by their keys, and the routes; none without the setting `roles`."""
    keys = AccessKeys(stack.records)
    routes: Sequence[Routes] = ()
    if stack.config.roles.any:
        routes = [partial(_routes, keys, stack.operators, settings.overlap_hours * 3600)]
    return Feature(authenticate=KeyAuthentication(keys, settings.use_seconds).authenticate, routes=routes)


def _routes(
    keys: AccessKeys, operators: Operators, overlap_seconds: float, _: OpenAIResponsesImpl, limits: RouteAdmission
) -> APIRouter:
    return keys_router(keys, operators, limits, overlap_seconds)
