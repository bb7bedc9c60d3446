"""Packs idle responses, if the stack has the setting `archive`."""

from __future__ import annotations

from ...feature import Feature, Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.records import unmoved
from .settings import SETTINGS


def open_feature(stack: Stack) -> Feature:
    """Return what packs; nothing without the setting."""
    settings = SETTINGS.of(stack.config)
    if settings is None:
        return Feature()
    from .objects import Objects
    from .packing import Packing

    records = unmoved(stack.records)
    packing = Packing(records, Objects(settings, records), settings.after_hours * 3600, stack.telemetry)

    def connect(impl: OpenAIResponsesImpl) -> None:
        packing.shares.worker = impl.jobs.worker_id

    return Feature(connect=connect, start=packing.start, close=packing.stop)
