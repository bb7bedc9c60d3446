"""The routes of operators, if there are some."""

from __future__ import annotations

from ...feature import Feature, Stack


def open_feature(stack: Stack) -> Feature:
    """Return the routes; nothing if the setting `roles` names no operators."""
    if not stack.config.roles.any:
        return Feature()
    from .operator_routes import open_operators

    return open_operators(stack)
