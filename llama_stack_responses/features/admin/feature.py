"""The routes of operators, if there are some."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter

from ...feature import Feature, RouteAdmission, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.audit_log import AuditLog
from ...wire.operators import Operators
from .operator_routes import operator_router
from .store_view import StoreView


def open_feature(stack: Stack) -> Feature:
    """Return the routes; nothing if the setting `roles` names no operators."""
    roles = stack.config.roles
    if not roles.any:
        return Feature()
    log = AuditLog(stack.records, roles.audit_seconds)
    operators = Operators(roles, stack.current_user, log)
    return Feature(routes=[partial(_routes, stack, operators, log)])


def _routes(
    stack: Stack, operators: Operators, log: AuditLog, impl: OpenAIResponsesImpl, limits: RouteAdmission
) -> APIRouter:
    return operator_router(impl, limits, operators, log, StoreView(stack.records))
