"""Packs idle responses, if the stack has the setting `archive`."""

from __future__ import annotations

from fastapi import APIRouter

from ...feature import Feature, RouteAdmission, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.records import unmoved
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what packs; without the setting, what logs that packed responses cannot be read."""
    settings, records = SETTINGS.of(stack.config), unmoved(stack.records)
    if settings is None:
        from .missing_setting import MissingSetting

        check = MissingSetting(records)
        return Feature(start=check.start, close=check.stop)
    from .objects import Objects
    from .packing import Packing

    packing = Packing(records, Objects(settings, records), settings.after_hours * 3600, stack.telemetry)

    def no_routes(impl: OpenAIResponsesImpl, _: RouteAdmission) -> APIRouter:
        packing.shares.worker = impl.jobs.worker_id
        return APIRouter()

    return Feature(routes=[no_routes], start=packing.start, close=packing.stop)
