"""The routes of scores."""

from __future__ import annotations

from functools import partial

from ...feature import Feature, Stack
from .routes import scores_router


def open_feature(stack: Stack) -> Feature:
    """Return the routes; those of operators only if the setting `roles` names some."""
    return Feature(routes=[partial(scores_router, stack.operators if stack.config.roles.operator else None)])
