"""The routes of scores."""

from __future__ import annotations

from functools import partial

from ...feature import Feature, Stack
from ...store.audit_log import AuditLog
from ...wire.operators import Operators
from .routes import scores_router


def open_feature(stack: Stack) -> Feature:
    """Return the routes; those of operators only if the setting `roles` names some."""
    roles = stack.config.roles
    log = AuditLog(stack.records, roles.audit_seconds)
    operators = Operators(roles, stack.current_user, log) if roles.operator else None
    return Feature(routes=[partial(scores_router, operators)])
